"""Protected remote memory.

A memory node lends its memory. Clients read and write it with one-sided operations, in which the node's CPU has no
part. Each client can access only the bytes on which it holds a live permission.

>>> import portcullis_memory
>>> with portcullis_memory.connect(node.address) as session:
...     with session.allocate(4096, lifetime=0.05, keep=True) as permission:
...         permission.write(b"hello, remote memory")
...         ref = permission.object  # names this object for ever: pass it on as text or bytes
...     with session.acquire(ref) as permission:
...         permission.read_bytes(20)
...     session.free(ref)
b'hello, remote memory'

- connect: opens a session with a node. Node: a node inside the process, for tests.
- Session: memory, permissions, names, batches, tables and queues; coroutines for asyncio.
- Permission: reads, writes and atomics. View: bytes that were read, in place. ArenaBuffer:
  memory that is read into and written from in place.
- Table, Queue: a mapping and a queue that many programs share. Claim: an entry of a queue that is delivered again
  unless it is acknowledged.
- BlockStore: immutable blocks under keys that determine them, on several nodes.
- Error: the base class of all exceptions.

Times are in seconds. Sizes are in bytes, or texts such as "64MiB". Bytes can be read into or written from any buffer:
bytes, bytearray, memoryview, array.array, mmap, numpy arrays.
"""

from __future__ import annotations

from portcullis_memory._native import ArenaBuffer, Batch, Keeper, ObjectRef, Permission, View, __version__
from portcullis_memory.blocks import BlockStore, ListedBlock, NodeStatus, PutResult
from portcullis_memory.claims import Claim
from portcullis_memory.errors import (
    BarredError,
    CallerError,
    ConflictError,
    EndedError,
    Error,
    ExpiredError,
    LibraryError,
    MachineError,
    NodeError,
    NodeGoneError,
    ObjectGoneError,
    PausedError,
    PeerError,
    QuotaError,
    RevokedError,
    TenantError,
)
from portcullis_memory.sessions import Entry, Node, Session, connect
from portcullis_memory.structures import Queue, Table

__all__ = [
    "ArenaBuffer",
    "BarredError",
    "Batch",
    "BlockStore",
    "CallerError",
    "Claim",
    "ConflictError",
    "EndedError",
    "Entry",
    "Error",
    "ExpiredError",
    "Keeper",
    "LibraryError",
    "ListedBlock",
    "MachineError",
    "Node",
    "NodeError",
    "NodeGoneError",
    "NodeStatus",
    "ObjectGoneError",
    "ObjectRef",
    "PausedError",
    "PeerError",
    "Permission",
    "PutResult",
    "Queue",
    "QuotaError",
    "RevokedError",
    "Session",
    "Table",
    "TenantError",
    "View",
    "__version__",
    "connect",
]
