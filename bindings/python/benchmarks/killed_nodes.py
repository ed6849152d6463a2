"""Blocks with two copies on three nodes, one of which is killed again and again: is a block lost, and does a get hang?

    python killed_nodes.py                  # 100 kills
    python killed_nodes.py --kills 6

Each node is a process, and is killed (SIGKILL) while two threads read blocks and compare their bytes. Another node takes its
place, empty, and all blocks are put again before the next kill. A get that has begun before a kill may miss if it lasts until
the next one. Exit codes: 0 if no block is lost and no byte is wrong; 1 otherwise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import portcullis_memory

LENGTH = 1 << 20
NODES = 3
HANGS_AFTER = 60.0


def serve(socket: Path, ready: Event) -> None:
    """Runs a node until it is killed."""
    with portcullis_memory.Node(memory="128MiB", socket=socket):
        ready.set()
        time.sleep(1e6)


def content(number: int) -> bytes:
    return number.to_bytes(8, "little") * (LENGTH // 8)


class Reader(threading.Thread):
    """Reads blocks, and compares their bytes."""

    def __init__(self, store: portcullis_memory.BlockStore, keys: list[bytes], killed: list[float]) -> None:
        super().__init__()
        self.store, self.keys, self.killed = store, keys, killed
        self.stops = False
        self.times: list[float] = []
        self.lost = self.wrong = 0

    def run(self) -> None:
        buffer = bytearray(LENGTH)
        while not self.stops:
            number = random.randrange(len(self.keys))
            kills, began = len(self.killed), time.monotonic()
            is_hit = self.store.get_into(self.keys[number], buffer)
            self.times.append(time.monotonic() - began)
            if is_hit:
                self.wrong += buffer != content(number)
            elif kills == len(self.killed):
                self.lost += 1


def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + HANGS_AFTER
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} never happens")
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=40)
    options = parser.parse_args()
    processes = multiprocessing.get_context("spawn")
    keys = [b"block %d" % number for number in range(options.blocks)]
    blocks = [content(number) for number in range(options.blocks)]
    with tempfile.TemporaryDirectory() as folder:
        sockets = [Path(folder) / f"node-{number}" for number in range(NODES)]

        def start(number: int) -> multiprocessing.process.BaseProcess:
            sockets[number].unlink(missing_ok=True)
            ready = processes.Event()
            node = processes.Process(target=serve, args=(sockets[number], ready), daemon=True)
            node.start()
            ready.wait()
            return node

        nodes = [start(number) for number in range(NODES)]
        with portcullis_memory.BlockStore([f"shm:{socket}" for socket in sockets], copies=2, lease=10) as store:

            def is_whole() -> bool:
                return all(put.copies == 2 for put in store.put_many(keys, blocks))

            until("a whole put", is_whole)
            killed: list[float] = []
            readers = [Reader(store, keys, killed) for _ in range(2)]
            for reader in readers:
                reader.start()
            try:
                for kill in range(options.kills):
                    number = kill % NODES
                    killed.append(time.monotonic())
                    nodes[number].kill()
                    nodes[number].join()
                    nodes[number] = start(number)
                    until("a node that is back", lambda: all(node.lost is None for node in store.status()))
                    until("a whole put", is_whole)
            finally:
                for reader in readers:
                    reader.stops = True
                for reader in readers:
                    reader.join()
        for node in nodes:
            node.kill()
    times = [taken for reader in readers for taken in reader.times]
    lost, wrong = sum(reader.lost for reader in readers), sum(reader.wrong for reader in readers)
    print(f"{options.kills} kills, {len(times)} gets: {lost} blocks lost, {wrong} with wrong bytes")
    print(f"a get: median {statistics.median(times) * 1e3:.2f} ms, longest {max(times) * 1e3:.0f} ms")
    return 1 if lost or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
