"""The speed of LMCache's adapters when they store and load blocks: Portcullis, its file-system adapter, and Redis.

    python bindings/python/benchmarks/lmcache_blocks.py [--help]

All adapters are LMCache's own classes, made from the same kind of configuration as a server makes them; Portcullis is
the `native_plugin`. One batch is under way at a time. The backends take turns, and each round uses new keys. The
program prints medians over the rounds, with the least and the most. Loaded bytes are compared with stored bytes,
outside of the measured times.

The node runs in a process of its own on this machine, unless --address names one. If other programs use the machine
too, node and adapter may get one processor for both of them, and each round trip waits for the scheduler: --processor
separates them. The file-system adapter writes into --folder (and never syncs: its reads come from the page cache), and
into /dev/shm. Redis is started if redis-server is on the PATH. The program names each backend that it cannot measure.
"""

import argparse
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

try:
    import torch
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.distributed.l2_adapters import config as l2_config
    from lmcache.v1.distributed.l2_adapters import factory as l2_factory
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
except ImportError as error:
    sys.exit(f"SKIPPED: LMCache cannot be used here: {error} (scripts/engines sets up an environment for it)")

NODE = """if True:
    import os, sys, portcullis_memory
    if len(sys.argv) > 2:
        os.sched_setaffinity(0, {int(sys.argv[2])})
    node = portcullis_memory.Node(memory=sys.argv[1])
    print(node.address, flush=True)
    sys.stdin.read()
"""


def blocks_of(tensor, length):
    """Returns memory objects over one piece of memory, as LMCache's L1 has them."""
    objects = []
    for at in range(0, tensor.numel(), length):
        part = tensor[at : at + length]
        about = MemoryObjMetadata(
            shape=part.shape, dtype=part.dtype, address=at, phy_size=length, ref_count=1, fmt=MemoryFormat.BINARY
        )
        objects.append(TensorMemoryObj(part, about, parent_allocator=None))
    return objects


class Backend:
    def __init__(self, name, spec):
        self.name = name
        kind = l2_config.get_l2_adapter_config_class
        l2_config._ensure_config_loaded(spec["type"])
        self.adapter = l2_factory.create_l2_adapter_from_registry(kind(spec["type"]).from_dict(spec))
        self.times = {"store": [], "look up": [], "load": []}

    def timed(self, what, begin, descriptor, ended):
        started = time.perf_counter()
        task = begin()
        while True:
            select.select([descriptor], [], [])
            os.eventfd_read(descriptor)
            outcome = ended(task)
            if outcome:
                break
        self.times[what].append(time.perf_counter() - started)
        return outcome

    def round(self, keys, stored, loaded):
        adapter = self.adapter

        def store_ended(task):
            return adapter.pop_completed_store_tasks().get(task)

        outcome = self.timed(
            "store", lambda: adapter.submit_store_task(keys, stored), adapter.get_store_event_fd(), store_ended
        )
        if not outcome.is_successful():
            sys.exit(f"{self.name}: a batch was not stored")
        found = self.timed(
            "look up",
            lambda: adapter.submit_lookup_and_lock_task(keys, {}),
            adapter.get_lookup_and_lock_event_fd(),
            adapter.query_lookup_and_lock_result,
        )
        got = self.timed(
            "load", lambda: adapter.submit_load_task(keys, loaded), adapter.get_load_event_fd(), adapter.query_load_result
        )
        adapter.submit_unlock(keys)
        if found.popcount() != len(keys) or got.popcount() != len(keys):
            sys.exit(f"{self.name}: {found.popcount()} found and {got.popcount()} loaded of {len(keys)}")

    def end(self, keys):
        self.adapter.delete(keys)


def spread(values, form):
    return f"{form(statistics.median(values)):8.2f} ({form(max(values)):.2f} to {form(min(values)):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of a node that is there already")
    parser.add_argument("--bytes", type=int, default=256 << 10, help="of a block (262144)")
    parser.add_argument("--batch", type=int, default=64, help="blocks of a batch (64)")
    parser.add_argument("--rounds", type=int, default=21, help="of all backends by turns (21); the first is not counted")
    parser.add_argument("--folder", help="for the file-system adapter (a new one in the folder for temporary files)")
    parser.add_argument("--processor", type=int, help="gives the node one of its own, which the adapter's thread keeps off")
    parser.add_argument("--workers", type=int, default=4, help="threads of LMCache's own adapters (4)")
    given = parser.parse_args()

    # The threads of torch's own operations, which compare the blocks here, spin for a while after each of them.
    torch.set_num_threads(1)
    total = given.bytes * given.batch
    stored = torch.randint(0, 256, (total,), dtype=torch.uint8)
    loaded = torch.zeros(total, dtype=torch.uint8)
    out, back = blocks_of(stored, given.bytes), blocks_of(loaded, given.bytes)
    processes, folders, backends = [], [], []
    try:
        address = given.address
        if address is None:
            command = [sys.executable, "-c", NODE, str(4 * total + (64 << 20))]
            if given.processor is not None:
                command.append(str(given.processor))
            node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(node)
            address = node.stdout.readline().strip()
        plugin = {"type": "native_plugin", "module_path": "portcullis_memory.lmcache", "class_name": "Adapter"}
        backends.append(Backend("Portcullis", {**plugin, "adapter_params": {"nodes": [address]}}))
        if given.processor is not None:
            for thread in threading.enumerate():
                if thread.name.startswith("portcullis"):
                    os.sched_setaffinity(thread.native_id, os.sched_getaffinity(0) - {given.processor})
        for name, parent in (("files", given.folder or tempfile.gettempdir()), ("files in /dev/shm", "/dev/shm")):
            folders.append(tempfile.mkdtemp(prefix="lmcache-", dir=parent))
            spec = {"type": "fs_native", "base_path": folders[-1], "num_workers": given.workers}
            backends.append(Backend(f"LMCache {name}", spec))
        if shutil.which("redis-server"):
            folders.append(tempfile.mkdtemp(prefix="redis-"))
            command = ["redis-server", "--port", "16379", "--bind", "127.0.0.1", "--save", "", "--dir", folders[-1]]
            redis = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            processes.append(redis)
            while "Ready to accept" not in redis.stdout.readline():
                pass
            spec = {"type": "resp", "host": "127.0.0.1", "port": 16379, "num_workers": given.workers}
            backends.append(Backend("LMCache Redis (TCP)", spec))
        else:
            print("not measured: Redis (no redis-server on the PATH)")

        for number in range(given.rounds):
            for backend in backends:
                hashes = [(number * given.batch + block).to_bytes(32, "big") for block in range(given.batch)]
                keys = [ObjectKey(chunk_hash=hash, model_name="org/model-7B", kv_rank=0) for hash in hashes]
                loaded.zero_()
                backend.round(keys, out, back)
                if not torch.equal(stored, loaded):
                    sys.exit(f"{backend.name}: what was loaded is not what was stored")
                backend.end(keys)
            if number == 0:
                for backend in backends:
                    for times in backend.times.values():
                        times.clear()

        print(f"{given.batch} blocks of {given.bytes} bytes a batch, {given.rounds - 1} rounds: median (least to most)")
        print(f"{'':24}{'store, GB/s':>26}{'load, GB/s':>28}{'look up, µs a key':>28}")
        for backend in backends:
            rate = lambda seconds: total / seconds / 1e9
            each = lambda seconds: seconds / given.batch * 1e6
            times = backend.times
            print(
                f"{backend.name:22}  {spread(times['store'], rate):>26}{spread(times['load'], rate):>28}"
                f"{spread([-t for t in times['look up']], lambda t: each(abs(t))):>28}"
            )
        for backend in backends:
            backend.adapter.close()
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
