"""A prefill and two decoders share the KV cache of prompts on three nodes. One node is killed, and one decoder is late.

    python prefill_decode.py
    python prefill_decode.py --prompts 40 --json

Each process is one of a serving cluster, without its GPU: the "KV cache" of a prompt is four blocks of 2 MiB whose bytes
follow from the prompt. The prefill puts each block on two nodes. The decoders read the blocks and compare every byte.

- In the middle one node is killed (SIGKILL). No block may be lost.
- At the end one decoder looks a prompt up, stands still until its lease is over, and reads then. Meanwhile the prefill
  has removed the prompt, and the memory belongs to others. The read may fail, and may never have another prompt's bytes.
  The same is tried with a plain file in shared memory, whose late reader has no permission that could end.
- Then the rates of storing and loading are measured, beside that file and beside Redis, if redis-server is installed.

Exit codes: 0 if no block was lost and no byte was wrong; 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import mmap
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol

from portcullis_memory import BlockStore, Node

LENGTH = 2 << 20
BLOCKS = 4
NODES = 3
COPIES = 2
# Seconds for which a look-up holds blocks.
LEASE = 0.5
# Prompts whose numbers begin here take the memory of a prompt that was removed.
OTHERS = 1_000_000

_processes = multiprocessing.get_context("spawn")


def keys_of(prompt: int) -> list[bytes]:
    """Returns the keys of a prompt's blocks: hashes, as an engine has them of its tokens."""
    return [hashlib.sha256(b"prompt %d, part %d" % (prompt, part)).digest() for part in range(BLOCKS)]


def content_of(key: bytes) -> bytes:
    """Computes a block, as a prefill does. Each part of it shows to which key it belongs."""
    return key * (LENGTH // len(key))


@dataclass
class Reads:
    """The reads of a decoder, in blocks."""

    hits: int = 0
    misses: int = 0
    wrong: int = 0

    def count(self, key: bytes, is_hit: bool, buffer: bytearray | memoryview) -> None:
        """Counts a read."""
        if not is_hit:
            self.misses += 1
        elif bytes(buffer) == content_of(key):
            self.hits += 1
        else:
            self.wrong += 1

    def add(self, other: Reads) -> None:
        """Adds the counts of other reads."""
        self.hits += other.hits
        self.misses += other.misses
        self.wrong += other.wrong


@dataclass
class Results:
    """The results of the program."""

    before_the_kill: Reads = field(default_factory=Reads)
    after_the_kill: Reads = field(default_factory=Reads)
    late: Reads = field(default_factory=Reads)
    late_of_plain_file: Reads = field(default_factory=Reads)
    #: GB/s of storing and of loading, by the name of the store: medians.
    rates: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether no block was lost, and no byte was wrong."""
        prompt = (self.before_the_kill, self.after_the_kill)
        return not any(reads.misses or reads.wrong for reads in prompt) and not self.late.wrong


# -- The processes -----------------------------------------------------------------------------------------------------


def serve(path: Path, memory: int, ready: Event) -> None:
    """Runs a node until it is killed."""
    with Node(memory=memory, socket=path):
        ready.set()
        time.sleep(1e6)


def prefill(addresses: list[str], orders: Connection) -> None:
    """Puts the blocks of prompts, and removes them. Answers each order with the number of copies of the rarest block."""
    with BlockStore(addresses, copies=COPIES, lease=LEASE) as store:
        while order := orders.recv():
            what, prompt = order
            keys = keys_of(prompt)
            if what == "remove":
                orders.send(min(store.remove_many(keys)))
            else:
                puts = store.put_many(keys, [content_of(key) for key in keys])
                orders.send(min(put.copies for put in puts))


def decode(addresses: list[str], orders: Connection) -> None:
    """Reads the blocks of prompts. Answers each order with a Reads."""
    buffers = [bytearray(LENGTH) for _ in range(BLOCKS)]
    with BlockStore(addresses, copies=COPIES, lease=LEASE) as store:
        while order := orders.recv():
            what, prompt = order
            keys, reads = keys_of(prompt), Reads()
            if what != "read":
                found = store.look_up(keys)
                reads.misses = found.count(None)
            if what != "look up":
                reads = Reads()
                for key, is_hit, buffer in zip(keys, store.get_many_into(keys, buffers), buffers):
                    reads.count(key, is_hit, buffer)
            orders.send(reads)


class Worker:
    """A process that carries out orders."""

    def __init__(self, work: Callable[[list[str], Connection], None], addresses: list[str]) -> None:
        self._orders, theirs = _processes.Pipe()
        self._process = _processes.Process(target=work, args=(addresses, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def do(self, what: str, prompt: int) -> Any:
        """Gives an order, and returns the answer."""
        self._orders.send((what, prompt))
        return self._orders.recv()

    def end(self) -> None:
        """Ends the process."""
        self._orders.send(None)
        self._process.join()


class Cluster:
    """The processes: nodes, a prefill and two decoders."""

    def __init__(self, folder: Path, memory: int) -> None:
        self.addresses = []
        self._nodes = []
        for number in range(NODES):
            path, ready = folder / f"node-{number}", _processes.Event()
            node = _processes.Process(target=serve, args=(path, memory, ready), daemon=True)
            node.start()
            ready.wait()
            self._nodes.append(node)
            self.addresses.append(f"shm:{path}")
        self.prefill = Worker(prefill, self.addresses)
        self.decoders = [Worker(decode, self.addresses) for _ in range(2)]

    def kill_a_node(self) -> None:
        """Kills one node, with all of its blocks."""
        self._nodes[1].kill()
        self._nodes[1].join()

    def end(self) -> None:
        """Ends all processes."""
        for worker in (self.prefill, *self.decoders):
            worker.end()
        for node in self._nodes:
            node.kill()
            node.join()


# -- The scenes --------------------------------------------------------------------------------------------------------


def serve_prompts(cluster: Cluster, prompts: range, seen: range, reads: Reads) -> None:
    """Puts prompts, each of which both decoders read, together with prompts that were put before."""
    for prompt in prompts:
        cluster.prefill.do("put", prompt)
        for decoder in cluster.decoders:
            reads.add(decoder.do("look up and read", prompt))
    for prompt in seen:
        for decoder in cluster.decoders:
            reads.add(decoder.do("look up and read", prompt))


def read_late(cluster: Cluster, prompt: int) -> Reads:
    """Makes a decoder read a prompt whose lease is over, and whose memory has other blocks."""
    late = cluster.decoders[1]
    found: Reads = late.do("look up", prompt)
    assert not found.misses, "the prompt was put"
    time.sleep(LEASE)  # The decoder stands still.
    cluster.prefill.do("remove", prompt)
    cluster.prefill.do("put", OTHERS + prompt)
    reads: Reads = late.do("read", prompt)
    return reads


class PlainFile:
    """Blocks in a file in shared memory, as many as fit. The keys and the places are in the program's own memory."""

    def __init__(self, path: Path, blocks: int) -> None:
        with path.open("wb+") as file:
            file.truncate(blocks * LENGTH)
            self._bytes = memoryview(mmap.mmap(file.fileno(), blocks * LENGTH))
        self._free = list(range(blocks))
        self._places: dict[bytes, int] = {}

    def put(self, key: bytes, block: bytes) -> None:
        """Stores a block."""
        place = self._places[key] = self._free.pop()
        self.at(place)[:] = block

    def place_of(self, key: bytes) -> int:
        """Returns the place of a block."""
        return self._places[key]

    def at(self, place: int) -> memoryview:
        """Returns the bytes of a place."""
        return self._bytes[place * LENGTH : (place + 1) * LENGTH]

    def remove(self, key: bytes) -> None:
        """Removes a block. Its place is free for others."""
        self._free.append(self._places.pop(key))

    def get_into(self, key: bytes, buffer: bytearray) -> bool:
        """Reads a block."""
        buffer[:] = self.at(self._places[key])
        return True


def read_plain_file_late(folder: Path, prompt: int) -> Reads:
    """Does with a plain file what read_late does with nodes."""
    file, reads = PlainFile(folder / "late", BLOCKS), Reads()
    for key in keys_of(prompt):
        file.put(key, content_of(key))
    places = [file.place_of(key) for key in keys_of(prompt)]  # The reader looks the blocks up, and stands still.
    for key in keys_of(prompt):
        file.remove(key)
    for key in keys_of(OTHERS + prompt):
        file.put(key, content_of(key))
    for key, place in zip(keys_of(prompt), places):
        reads.count(key, True, file.at(place))
    return reads


# -- Rates -------------------------------------------------------------------------------------------------------------


class Keeper(Protocol):
    """A store of blocks."""

    def put(self, key: bytes, block: bytes, /) -> object:
        """Stores a block."""

    def get_into(self, key: bytes, buffer: bytearray, /) -> bool:
        """Reads a block."""

    def remove(self, key: bytes, /) -> object:
        """Removes a block."""


class Redis:
    """The commands of Redis that this program needs, over a socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("rb", buffering=0)

    def _send(self, *parts: bytes) -> bytes:
        self._socket.sendall(b"*%d\r\n" % len(parts))
        for part in parts:
            self._socket.sendall(b"$%d\r\n" % len(part))
            self._socket.sendall(part)
            self._socket.sendall(b"\r\n")
        return self._answers.readline()

    def put(self, key: bytes, block: bytes) -> None:
        """Stores a block."""
        assert self._send(b"SET", key, block) == b"+OK\r\n"

    def get_into(self, key: bytes, buffer: bytearray) -> bool:
        """Reads a block."""
        if self._send(b"GET", key) != b"$%d\r\n" % len(buffer):
            return False
        rest = memoryview(buffer)
        while rest:
            rest = rest[self._socket.recv_into(rest) :]
        return self._answers.readline() == b"\r\n"

    def remove(self, key: bytes) -> None:
        """Removes a block."""
        self._send(b"DEL", key)


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[Redis | None]:
    """Starts Redis. None: it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    path = folder / "redis"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        while not path.exists() and server.poll() is None:
            time.sleep(0.01)
        yield Redis(path)
    finally:
        server.terminate()
        server.wait()


def rates(stores: dict[str, Keeper], rounds: int) -> dict[str, tuple[float, float]]:
    """Measures how fast blocks are stored and loaded, one at a time, in turns."""
    keys = [key for prompt in range(2) for key in keys_of(2 * OTHERS + prompt)]
    blocks = [content_of(key) for key in keys]
    buffer = bytearray(LENGTH)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in stores}
    for _ in range(rounds + 1):
        for name, store in stores.items():
            began = time.perf_counter()
            for key, block in zip(keys, blocks):
                store.put(key, block)
            stored = time.perf_counter()
            for key in keys:
                assert store.get_into(key, buffer), f"{name} has lost a block"
            loaded = time.perf_counter()
            assert buffer == blocks[-1]
            for key in keys:
                store.remove(key)
            taken[name].append((stored - began, loaded - stored))
    volume = len(keys) * LENGTH / 1e9
    # The first round touches memory for the first time.
    medians = {name: [statistics.median(times) for times in zip(*all[1:])] for name, all in taken.items()}
    return {name: (volume / put, volume / get) for name, (put, get) in medians.items()}


def measured(folder: Path, addresses: list[str], rounds: int) -> dict[str, tuple[float, float]]:
    """Measures all stores that are there."""
    shared = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else folder
    with contextlib.ExitStack() as opened:
        place = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=shared)))
        stores: dict[str, Keeper] = {"a plain file in shared memory": PlainFile(place / "rates", 2 * BLOCKS)}
        for copies, name in ((1, "Portcullis, one copy"), (COPIES, "Portcullis, two copies")):
            stores[name] = opened.enter_context(BlockStore(addresses, copies=copies, table=f"copies-{copies}"))
        server = opened.enter_context(redis(folder))
        if server is not None:
            stores["Redis, by a Unix socket"] = server
        return rates(stores, rounds)


# -- The program -------------------------------------------------------------------------------------------------------


def run(folder: Path, prompts: int, rounds: int) -> Results:
    """Runs all scenes."""
    results = Results()
    # Two nodes have all copies when the third one was killed.
    memory = (prompts + 8) * BLOCKS * LENGTH + (32 << 20)
    cluster = Cluster(folder, memory)
    half = prompts // 2
    serve_prompts(cluster, range(half), range(0), results.before_the_kill)
    cluster.kill_a_node()
    serve_prompts(cluster, range(half, prompts), range(half), results.after_the_kill)
    results.late = read_late(cluster, 0)
    results.late_of_plain_file = read_plain_file_late(folder, 0)
    alive = [cluster.addresses[0], cluster.addresses[2]]
    results.rates = measured(folder, alive, rounds)
    cluster.end()
    return results


def show(results: Results) -> None:
    """Prints the results."""
    row = "{:32} {:>6} {:>7} {:>12}"
    print(row.format("blocks read", "hits", "misses", "wrong bytes"))
    for name, reads in (
        ("with three nodes", results.before_the_kill),
        ("after one was killed", results.after_the_kill),
        ("by the late decoder", results.late),
        ("late, from a plain file", results.late_of_plain_file),
    ):
        print(row.format(name, reads.hits, reads.misses, reads.wrong))
    print("\n{:32} {:>10} {:>10}".format("GB/s, blocks of 2 MiB", "store", "load"))
    for name, (put, get) in results.rates.items():
        print(f"{name:32} {put:10.2f} {get:10.2f}")
    if not any(name.startswith("Redis") for name in results.rates):
        print("SKIPPED Redis: there is no redis-server on the PATH")


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=12, help="prompts of 8 MiB (12)")
    parser.add_argument("--rounds", type=int, default=5, help="of the measurement (5)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = run(Path(folder), options.prompts, options.rounds)
    if options.json:
        print(json.dumps(asdict(results)))
    else:
        show(results)
    return 0 if results.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
