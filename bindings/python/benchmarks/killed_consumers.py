"""A queue of claims whose consumers are killed: are jobs lost, and how many are done twice?

    python killed_consumers.py                            # 13,500 jobs, 4 consumers, 60 of them killed
    python killed_consumers.py --jobs 1350 --kills 8

The node, the producer and each consumer are processes. A consumer writes the number of each job into a file of its own,
by one write, and then acknowledges the job. It is killed (SIGKILL) at any moment, and another consumer takes its place.
A job may be written twice, if its consumer died between the two steps. Exit codes: 0 if no job is lost; 1 if one is.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import random
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import portcullis_memory


def serve(socket: Path, ready: Event, over: Event) -> None:
    """Runs the node until ``over`` is set."""
    with portcullis_memory.Node(memory="64MiB", socket=socket):
        ready.set()
        over.wait()


def consume(address: str, path: Path, lease: float) -> None:
    """Does jobs until the queue is closed."""
    with portcullis_memory.connect(address) as session, session.open_queue("jobs") as jobs:
        done = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        while True:
            try:
                claim = jobs.claim(lease, timeout=10)
            except portcullis_memory.Error as error:
                if error.name == "queue-closed":
                    return
                raise
            if claim is None:
                continue
            os.write(done, b"%b %d\n" % (claim.entry, claim.deliveries))
            try:
                claim.acknowledge()
            except portcullis_memory.EndedError:
                pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=13_500)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--lease", type=float, default=0.1, help="of a claim, in seconds")
    parser.add_argument("--seed", type=int, default=None, help="of when which consumer is killed")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    dice = random.Random(seed)
    # A child of fork would share the sessions of its parent.
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "node.sock")
        address = f"shm:{socket}"
        ready, over = processes.Event(), processes.Event()
        node = processes.Process(target=serve, args=(socket, ready, over))
        node.start()
        ready.wait()
        try:
            began = time.monotonic()
            counts, again = run(processes, dice, address, Path(folder), options)
            took = time.monotonic() - began
        finally:
            over.set()
            node.join()
    lost = options.jobs - len(counts)
    twice = sum(count - 1 for count in counts.values())
    print(
        f"{options.jobs} jobs, {lost} lost, {again} done after they had come again, {twice} of them once more; "
        f"{options.kills} consumers killed, seed {seed}, {took:.1f} s"
    )
    return 1 if lost else 0


def run(processes, dice, address: str, folder: Path, options) -> tuple[collections.Counter[bytes], int]:
    """Returns how often each job was done, and how many were done in a later delivery than their first."""
    started = 0

    def start():
        nonlocal started
        started += 1
        consumer = processes.Process(target=consume, args=(address, folder / f"done.{started}", options.lease))
        consumer.start()
        return consumer

    with portcullis_memory.connect(address) as session, session.create_queue("jobs", claims=True) as jobs:
        consumers = [start() for _ in range(options.consumers)]
        kills = sorted(dice.randrange(options.jobs) for _ in range(options.kills))
        for number in range(options.jobs):
            while kills and kills[0] == number:
                kills.pop(0)
                which = dice.randrange(len(consumers))
                # A consumer must have begun: otherwise there would be no job to lose.
                wait_until(lambda: any(folder.glob("done.*")))
                consumers[which].kill()
                consumers[which].join()
                consumers[which] = start()
            jobs.push(b"%d" % number)
            # The producer waits, so that consumers keep up and are killed in the middle of their work.
            wait_until(lambda: number % 50 or jobs.statistics()["slots"] < 200)
        jobs.end()
        for consumer in consumers:
            consumer.join()
    lines = [line.split() for path in folder.glob("done.*") for line in path.read_bytes().splitlines()]
    return collections.Counter(job for job, _ in lines), sum(deliveries != b"1" for _, deliveries in lines)


def wait_until(is_so) -> None:
    while not is_so():
        time.sleep(0.001)


if __name__ == "__main__":
    sys.exit(main())
