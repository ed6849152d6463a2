"""Blocks between a memory node and a GPU: the GPU copies one block while the next one is read or written.

    python benchmarks/gpu.py [--bytes 2MiB] [--blocks 512] [--rounds 5] [--address shm:portcullis.sock] [--cuda PATH]

Needs torch and a GPU of NVIDIA's. Without them the program says which one is missing, and exits with 77. Without
--address the node is a thread of this program, and shares the processors with it.

Each line is the median of the rounds, with the slowest and the quickest one. The lines without a node or without a GPU
show which side limits the whole.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import portcullis_memory

#: The program's exit status if torch or a GPU is missing: the number by which test harnesses know a skipped test.
MISSING = 77
#: Blocks of the node's memory that the transfers go through, one after the other.
WINDOW = 16
#: Blocks on this side: while the GPU copies one, the node's bytes go to or come from the other.
SLOTS = 2
#: Lifetime of the permission in seconds. A keeper extends it.
LIFETIME = 10


def missing(text: str) -> int:
    print(f"gpu.py needs torch and a GPU, and {text}", file=sys.stderr)
    return MISSING


class Transfers:
    """The two directions, over any memory of this machine that torch has as tensors."""

    def __init__(self, torch: Any, permission: portcullis_memory.Permission, size: int, blocks: int) -> None:
        session = permission.session
        self.torch, self.permission, self.size, self.blocks = torch, permission, size, blocks
        self.buffers = [session.buffer(size) for _ in range(SLOTS)]
        # No warning: the buffers can be written. A tensor keeps its buffer, and the buffer its part of the arena.
        self.arena = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in self.buffers]
        self.pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(SLOTS)]
        self.device = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(SLOTS)]
        self.stream = torch.cuda.Stream()
        self.copied = [torch.cuda.Event() for _ in range(SLOTS)]

    def offset(self, block: int) -> int:
        return block % WINDOW * self.size

    def start_copy(self, slot: int, into: Any, source: Any) -> None:
        """Begins a copy on the stream, and does not wait."""
        with self.torch.cuda.stream(self.stream):
            into.copy_(source, non_blocking=True)
            self.copied[slot].record(self.stream)

    def read(self) -> None:
        for block in range(self.blocks):
            self.permission.read_into(self.buffers[block % SLOTS], self.offset(block))

    def write(self) -> None:
        for block in range(self.blocks):
            self.permission.write(self.buffers[block % SLOTS], self.offset(block))

    def to_gpu(self, source: list[Any]) -> None:
        for block in range(self.blocks):
            slot = block % SLOTS
            self.start_copy(slot, self.device[slot], source[slot])
        self.stream.synchronize()

    def from_gpu(self, into: list[Any]) -> None:
        for block in range(self.blocks):
            slot = block % SLOTS
            self.start_copy(slot, into[slot], self.device[slot])
        self.stream.synchronize()

    def read_to_gpu(self) -> None:
        """Reads block after block, while the GPU copies the block before."""
        for block in range(self.blocks):
            slot = block % SLOTS
            # The GPU has to be done with the block that this buffer held before.
            self.copied[slot].synchronize()
            self.permission.read_into(self.buffers[slot], self.offset(block))
            self.start_copy(slot, self.device[slot], self.arena[slot])
        self.stream.synchronize()

    def write_from_gpu(self) -> None:
        """Writes block after block, while the GPU copies the block behind."""
        self.start_copy(0, self.arena[0], self.device[0])
        for block in range(self.blocks):
            slot, other = block % SLOTS, (block + 1) % SLOTS
            if block + 1 < self.blocks:
                # The write of the block before has ended, so the other buffer is free.
                self.start_copy(other, self.arena[other], self.device[other])
            self.copied[slot].synchronize()
            self.permission.write(self.buffers[slot], self.offset(block))

    def check(self) -> None:
        """Sends bytes through both directions, and compares."""
        torch = self.torch
        for slot in range(SLOTS):
            self.device[slot].fill_(slot + 1)
        torch.cuda.synchronize()
        self.write_from_gpu()
        for tensor in (*self.arena, *self.device):
            tensor.zero_()
        torch.cuda.synchronize()
        self.read_to_gpu()
        for slot in range(SLOTS):
            assert bool((self.device[slot] == slot + 1).all()), "the GPU got other bytes than it gave"


def measure(transfers: Transfers, rounds: int) -> Iterator[tuple[str, list[float]]]:
    """Returns GB/s of each way for each round. The ways take turns."""
    ways: dict[str, Callable[[], None]] = {
        "pinned memory to GPU": lambda: transfers.to_gpu(transfers.pinned),
        "arena to GPU": lambda: transfers.to_gpu(transfers.arena),
        "node to arena": transfers.read,
        "node to arena to GPU": transfers.read_to_gpu,
        "GPU to pinned memory": lambda: transfers.from_gpu(transfers.pinned),
        "GPU to arena": lambda: transfers.from_gpu(transfers.arena),
        "arena to node": transfers.write,
        "GPU to arena to node": transfers.write_from_gpu,
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            before = time.perf_counter_ns()
            way()
            rates[name].append(transfers.size * transfers.blocks / (time.perf_counter_ns() - before))
    yield from rates.items()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=int, default=2 << 20, help="bytes of a block, a number")
    parser.add_argument("--blocks", type=int, default=512, help="blocks of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--address", help="the node; by default a node inside this program")
    parser.add_argument("--cuda", default=True, metavar="PATH", help="path of libcuda.so.1, if the loader does not find it")
    options = parser.parse_args()
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        return missing(f"torch cannot be imported here ({error}): pip install torch")
    if not torch.cuda.is_available():
        return missing("torch finds no GPU: see nvidia-smi, and whether torch was built with CUDA")
    # The arena has room for the buffers, and for the session's own messages.
    arena = 4 * SLOTS * options.bytes
    with contextlib.ExitStack() as stack:
        if options.address is None:
            node = stack.enter_context(portcullis_memory.Node(memory=2 * WINDOW * options.bytes + (64 << 20)))
            address = node.address
        else:
            address = options.address
        session = stack.enter_context(portcullis_memory.connect(address, arena=arena, cuda=options.cuda))
        permission = stack.enter_context(session.allocate(WINDOW * options.bytes, lifetime=LIFETIME))
        stack.enter_context(permission.keep(by=LIFETIME))
        transfers = Transfers(torch, permission, options.bytes, options.blocks)
        print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}; {options.blocks} blocks of {options.bytes} bytes")
        print(f"torch takes the arena for pinned memory: {transfers.arena[0].is_pinned()}")
        transfers.check()
        for name, rates in measure(transfers, options.rounds):
            print(f"{name:22} {statistics.median(rates):6.2f} GB/s  ({min(rates):.2f} to {max(rates):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
