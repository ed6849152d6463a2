"""A program that uses the types of the package. scripts/python checks it with mypy; it is never run."""

import asyncio
import array
import pickle
import portcullis_memory
import numpy as np
from collections.abc import MutableMapping

def use(address: str) -> bytes:
    with portcullis_memory.Node(memory="64MiB") as node, node.connect(tenant="t", arena="4MiB") as inside:
        print(node.address, inside.number)
    with portcullis_memory.connect(address, arena=1 << 20) as session:
        with session.allocate("4KiB", lifetime=0.5, keep=True) as permission:
            permission.write(b"x")
            permission.write(np.zeros(4))
            into = bytearray(4)
            permission.read_into(into)
            permission.read_into(array.array("d", [0.0]))
            permission.read_into(np.zeros(4))
            with permission.read(5) as view:
                a: memoryview = view[1:]
            ref: portcullis_memory.ObjectRef = pickle.loads(pickle.dumps(permission.object))
            sizes = sorted([ref, permission.object])
            session.read_many([(permission, 0, into), (permission, 4, into)])
            batch = session.batch()
            batch.read_into(permission, into, offset=4)
            for result in batch.run():
                if isinstance(result, portcullis_memory.QuotaError):
                    print(result.number, result.is_retryable, sizes, a)
        async def main() -> bytes:
            async with session.acreate_table("t2", keep=True) as cities, session.acreate_queue() as jobs:
                await cities.aset(b"a", b"b", ttl=1.0)
                there: bytes | None = await cities.aget(b"a")
                await jobs.apush(there or b"")
                job: bytes | None = await jobs.apop(timeout=1.0)
                print(job)
            opened: portcullis_memory.Table = await session.aopen_table("t2")
            await opened.aclose()
            p = await session.aallocate(10)
            await session.awrite(p, b"1")
            return await session.aread(p, 1)
        table: MutableMapping[bytes, bytes] = session.create_table("t", lease=1.0)
        table[b"a"] = b"b"
        with session.open_table("t") as again, session.create_queue() as queue:
            values: list[bytes | None] = again.get_many([b"a"])
            entry: bytes | None = queue.pop(timeout=1.0)
            print(values, entry)
        for e in session.names():
            print(e.name, e.size)
        return asyncio.run(main())
