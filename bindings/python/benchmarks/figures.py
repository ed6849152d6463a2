"""The cost of Python: median times beside Rust's own, measured in turns.

    python benchmarks/figures.py [--portcullis target/release/portcullis] [--lab target/release/portcullis-lab] [--rounds 5]

The node is a process of its own on processor 0. This program runs on processor 1, as in `portcullis-lab bench`. Rust's
figures are from `portcullis-lab bench` with the same node. Build everything for release first: `make build`, and the
wheel by `pip install`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import portcullis_memory

SMALL = 64
LARGE = 64 << 10
BATCH = 64


@contextmanager
def node(program: str) -> Iterator[str]:
    """Starts a node in a process of its own, on processor 0."""
    with tempfile.TemporaryDirectory(prefix="portcullis-") as folder:
        address = f"shm:{folder}/node.sock"
        serve = subprocess.Popen(
            ["taskset", "-c", "0", program, "serve", "--memory", "256MiB", "--listen", address],
            stdout=subprocess.DEVNULL,
        )
        try:
            while not Path(folder, "node.sock").exists():
                time.sleep(0.01)
            yield address
        finally:
            serve.send_signal(signal.SIGTERM)
            serve.wait()


def rust(program: str, address: str, *arguments: str) -> dict[str, object]:
    """Measures a figure of Rust."""
    # It chooses its processors by itself, and measures how far apart they are.
    command = ["taskset", "-c", "0,1", program, "bench", *arguments, "--node", address, "--json"]
    result: dict[str, object] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def held(session: portcullis_memory.Session, size: int) -> portcullis_memory.Permission:
    return session.allocate(size, lifetime=10)


def median(call: Callable[[], object]) -> float:
    """Returns the median time of a call in µs.

    Other programs that use the processor meanwhile do not change a median, as they would change a rate.
    """
    times, clock = [], time.perf_counter_ns
    until = clock() + 1_000_000_000
    while clock() < until:
        for _ in range(20):
            before = clock()
            call()
            times.append(clock() - before)
    return statistics.median(times) / 1000


def latency(session: portcullis_memory.Session) -> float:
    """Measures a read of 64 bytes."""
    with held(session, SMALL) as permission:
        into = bytearray(SMALL)
        return median(lambda: permission.read_into(into))


def in_place(session: portcullis_memory.Session) -> float:
    """Measures a read of 64 KiB, all of which is read in place."""
    import numpy

    def look() -> None:
        with permission.read() as view:
            numpy.bitwise_xor.reduce(numpy.frombuffer(view, numpy.uint64))

    with held(session, LARGE) as permission:
        return median(look)


def many(session: portcullis_memory.Session) -> float:
    """Measures 64 reads of 64 bytes, with read_many."""
    with held(session, SMALL) as permission:
        reads = [(permission, 0, bytearray(SMALL)) for _ in range(BATCH)]
        return median(lambda: session.read_many(reads))


def batch(session: portcullis_memory.Session) -> float:
    """Measures 64 reads of 64 bytes, with a batch that is filled by a call for each of them."""
    buffers = [bytearray(SMALL) for _ in range(BATCH)]
    batch = session.batch()

    def fill_and_run() -> None:
        for buffer in buffers:
            batch.read_into(permission, buffer)
        batch.run()

    with held(session, SMALL) as permission:
        return median(fill_and_run)


def told(name: str, values: list[float]) -> None:
    print(f"{name:56} {statistics.median(values):8.2f} µs  ({min(values):.2f} to {max(values):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--portcullis", default="target/release/portcullis")
    parser.add_argument("--lab", default="target/release/portcullis-lab")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    measured: dict[str, list[float]] = {}
    pythons: list[tuple[str, Callable[[portcullis_memory.Session], float]]] = [
        ("Python: 64 B, read_into", latency),
        ("Python: 64 KiB looked at in place", in_place),
        ("Python: 64 reads of 64 B, read_many", many),
        ("Python: 64 reads of 64 B, Batch", batch),
    ]
    rusts: list[tuple[str, tuple[str, ...]]] = [
        ("Rust: 64 B, read_lat", ("read_lat", "-D", "1")),
        ("Rust: 64 KiB looked at in place", ("read_rate", "-s", "64KiB", "--look", "in-place", "-o", "1")),
    ]
    print(f"Python {sys.version.split()[0]}, {portcullis_memory.__version__}")
    with node(options.portcullis) as address, portcullis_memory.connect(address, arena="16MiB") as session:
        for _ in range(options.rounds):
            for name, arguments in rusts:
                took = rust(options.lab, address, *arguments)["t_typical"]
                measured.setdefault(name, []).append(float(str(took)))
            for name, measure in pythons:
                measured.setdefault(name, []).append(measure(session))
    for name, values in measured.items():
        told(name, values)
    middle = {name: statistics.median(values) for name, values in measured.items()}
    small, large, many_, _ = (middle[name] for name, _ in pythons)
    rust_small, rust_large = (middle[name] for name, _ in rusts)
    print(f"64 B: Python takes {small - rust_small:.2f} µs more than Rust (at most 1.5 are promised)")
    print(f"64 KiB in place: {rust_large / large:.2f} of Rust's rate (at least 0.8 is promised)")
    print(f"batches of 64: {BATCH / many_:.2f} M reads a second (at least 1 is promised)")


if __name__ == "__main__":
    main()
