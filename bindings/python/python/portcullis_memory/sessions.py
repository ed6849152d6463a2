"""Sessions, and the node inside the process."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from portcullis_memory import _native
from portcullis_memory.aio import Awaiting, Opening
from portcullis_memory.structures import Queue, Table

if TYPE_CHECKING:
    from portcullis_memory._native import ObjectRef
    from portcullis_memory.typing import Size

__all__ = ["Entry", "Node", "Session", "connect"]


class Entry(NamedTuple):
    """A name of an object."""

    #: The name.
    name: str
    #: The object.
    object: ObjectRef
    #: Bytes of the object.
    size: int
    #: What permissions of the asking tenant over the object may allow: letters of "rwa".
    rights: str


class Session(Awaiting, _native.Session):
    """A session with a node: connect and Node.connect open it.

    As a context manager, with ``with`` or ``async with``, it is closed at the end of the block, and its permissions end with it. One
    thread uses a session at a time; give each thread its own. A child of fork opens its own.

    The methods that begin with ``a`` are for asyncio: any number of them at once, without a thread.
    """

    def lookup(self, name: str, tenant: str | None = None) -> Entry:
        """The object that has a name: of this tenant, or of another one that shares it with this one."""
        return Entry(*self._lookup(name, tenant))

    def names(self, tenant: str | None = None) -> list[Entry]:
        """All names of this tenant, or those that another one shares with it, in order."""
        return [Entry(*named) for named in self._names(tenant)]

    def create_table(self, name: str | None = None, **options: Any) -> Table:
        """Makes an empty table, with a name if it is to have one.

        Options: lease (seconds; who dies in the middle of a change holds others up no longer than twice this), groups (of buckets
        of a subtable: each has room for 21 keys), depth_max (at most two to this power subtables), seed (of the hashes,
        for experiments: drawn unless told), keep (as Session.allocate, but not False: True unless told), grain ("extent", or
        "block" for a permission for each value), blocks ("objects", or "chunks" for memory of this session alone).
        """
        return Table(_native.Table.create(self, name, options))

    def open_table(self, at: str | ObjectRef, read_only: bool = False) -> Table:
        """Opens the table with a name, or with a reference to its head."""
        return Table(_native.Table.open(self, at, read_only))

    def create_queue(self, name: str | None = None, **options: Any) -> Queue:
        """Makes an empty queue, with a name if it is to have one.

        Options: segment_slots (64 to 1024), cell_bytes (of a slot; a longer entry takes several), segments_max, claims (True: entries
        are claimed and acknowledged, not popped), lease (seconds: for how long one who has died can hold up others), keep (as
        Session.allocate, but not False: True unless told).
        """
        return Queue(_native.Queue.create(self, name, options))

    def open_queue(self, at: str | ObjectRef) -> Queue:
        """Opens the queue with a name, or with a reference to its head."""
        return Queue(_native.Queue.open(self, at))

    def acreate_table(self, name: str | None = None, **options: Any) -> Opening[Table]:
        """As create_table, for asyncio: ``table = await session.acreate_table()``, or ``async with session.acreate_table() as table``.

        A thread of the event loop's pool uses the session meanwhile. Coroutines wait for it, and calls get an error named ``in-use``.
        """
        return Opening(lambda: self.create_table(name, **options))

    def aopen_table(self, at: str | ObjectRef, read_only: bool = False) -> Opening[Table]:
        """As open_table, for asyncio: see acreate_table."""
        return Opening(lambda: self.open_table(at, read_only))

    def acreate_queue(self, name: str | None = None, **options: Any) -> Opening[Queue]:
        """As create_queue, for asyncio: see acreate_table."""
        return Opening(lambda: self.create_queue(name, **options))

    def aopen_queue(self, at: str | ObjectRef) -> Opening[Queue]:
        """As open_queue, for asyncio: see acreate_table."""
        return Opening(lambda: self.open_queue(at))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self.close()


def connect(
    address: str,
    *,
    arena: Size = "4MiB",
    certificates: str | os.PathLike[str] | None = None,
    tenant: str | None = None,
    within: float = 5.0,
) -> Session:
    """Opens a session with the node at an address: ``shm:/run/portcullis.sock``, ``udp:host:port``, ``rdma:host:port``, or
    ``name:tenant/node`` to be looked up in the cluster's directory.

    arena: bytes of the memory that reads, writes and views go through, 4 MiB unless told. A read in place or an operation of a batch
    needs room for all its bytes in one piece there; read_into, read_bytes and write do not. The node allows arenas up to its
    ``--arena-max``, and takes the memory of all of them from its ``--ports-memory``. certificates, tenant: a folder made by
    ``portcullis certificates``, and the tenant to act for, for nodes of other machines. within: seconds for which the attach and each
    operation may wait for the node; then it fails with the error ``timed-out``, and the session goes on.

    >>> with portcullis_memory.connect(node.address) as session:
    ...     session.closed
    False
    """
    return Session(address, arena=arena, certificates=certificates, tenant=tenant, within=within)


def _remove(folder: str, owner: int) -> None:
    """Removes the folder of a node's socket. In a child of fork it is the parent's."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class Node(_native.Node):
    """A node inside this process, for tests. As a context manager it ends at the end of the block.

    memory: what it lends. socket: a path at which other processes of this user can come to it, too; without one it makes a socket
    in a folder of its own.

    >>> with portcullis_memory.Node(memory="64MiB") as node, node.connect() as session:
    ...     with session.allocate(5) as permission:
    ...         permission.write(b"hello")
    ...         permission.read_bytes()
    b'hello'
    """

    _folder: weakref.finalize[..., Any] | None

    def __new__(cls, memory: Size = "64MiB", socket: str | os.PathLike[str] | None = None) -> Node:
        """Starts the node."""
        if socket is not None:
            node = super().__new__(cls, memory, socket)
            node._folder = None
            return node
        folder = tempfile.mkdtemp(prefix="portcullis-")
        try:
            node = super().__new__(cls, memory, Path(folder, "node.sock"))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        node._folder = weakref.finalize(node, _remove, folder, os.getpid())
        return node

    def connect(self, tenant: str = "local", arena: Size = "4MiB") -> Session:
        """Opens a session with the node, for a tenant of any name. arena: as of portcullis_memory.connect."""
        return Session(self, arena=arena, tenant=tenant)

    def stop(self) -> None:
        """Ends the node, and everything on it. Stopping it again does nothing."""
        super().stop()
        if self._folder is not None:
            self._folder()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.stopped:
            self.stop()

    def __repr__(self) -> str:
        return f"<portcullis_memory.Node at {self.address}{', stopped' if self.stopped else ''}>"
