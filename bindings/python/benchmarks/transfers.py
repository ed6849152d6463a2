"""The cost of a long transfer: read_into and write beside views, measured in turns.

    python benchmarks/transfers.py [--bytes 2MiB] [--rounds 300] [--processors 0,1] [--arena 16MiB]

The node is a thread of this program. On one processor, the node and the program take turns, and each wait for the other
costs a switch or more.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable

import portcullis_memory


def ways(permission: portcullis_memory.Permission) -> dict[str, Callable[[], object]]:
    """Returns the ways of moving all bytes of a permission once."""
    into, data = bytearray(permission.length), bytes(permission.length)

    def view() -> None:
        with permission.read():
            pass

    def view_copied() -> None:
        with permission.read() as seen:
            into[:] = seen

    return {
        "read_into": lambda: permission.read_into(into),
        "a view, not looked at": view,
        "a view, copied out of": view_copied,
        "write": lambda: permission.write(data),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", default="2MiB")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--processors", default="0,1")
    parser.add_argument("--arena", default="16MiB")
    options = parser.parse_args()
    os.sched_setaffinity(0, {int(processor) for processor in options.processors.split(",")})
    with (
        portcullis_memory.Node(memory="256MiB") as node,
        node.connect(arena=options.arena) as session,
        session.allocate(options.bytes, lifetime=10) as permission,
        permission.keep(by=10),
    ):
        moves = list(ways(permission).items())
        took: dict[str, list[int]] = {}
        for _ in range(options.rounds):
            # The order changes each time: the first transfer after a pause finds the node's thread asleep.
            for name, way in random.sample(moves, len(moves)):
                permission.read_bytes(8)
                before = time.perf_counter_ns()
                way()
                took.setdefault(name, []).append(time.perf_counter_ns() - before)
        for name, times in sorted(took.items()):
            tenths = statistics.quantiles(times, n=10)
            rates = [permission.length / time for time in (statistics.median(times), tenths[8], tenths[0])]
            print(f"{name:24} {rates[0]:6.2f} GB/s  (tenth to nine tenths: {rates[1]:.2f} to {rates[2]:.2f})")


if __name__ == "__main__":
    main()
