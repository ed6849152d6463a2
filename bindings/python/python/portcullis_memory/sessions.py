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
    """A name, and the object that has it."""

    #: The name.
    name: str
    #: The object.
    object: ObjectRef
    #: The number of bytes of the object.
    size: int
    #: The rights that the requesting tenant's permissions over the object may have: letters of "rwa".
    rights: str


class Session(Awaiting, _native.Session):
    """A session with a node. connect and Node.connect open it.

    Used as a context manager, by ``with`` or ``async with``, the session is closed at the end of the block, and its
    permissions end with it. Only one thread at a time may use a session: give each thread its own. A child of fork must
    open a session of its own.

    The methods whose names begin with ``a`` are for asyncio. Any number of them can run at once, without a thread.
    """

    def lookup(self, name: str, tenant: str | None = None) -> Entry:
        """Returns the object with a name, of this tenant or of another tenant that shares the name with this one."""
        return Entry(*self._lookup(name, tenant))

    def names(self, tenant: str | None = None) -> list[Entry]:
        """Returns all names of this tenant, or all names that another tenant shares with this one, in order."""
        return [Entry(*named) for named in self._names(tenant)]

    def create_table(self, name: str | None = None, **options: Any) -> Table:
        """Makes an empty table, and gives it a name if one is given.

        Options:

        - lease: seconds. A client that dies in the middle of a change holds up others for at most twice this time.
        - groups: number of groups of buckets of a subtable. Each group has room for 21 keys.
        - depth_max: the table has at most two to this power subtables.
        - seed: seed of the hashes, for experiments. By default it is drawn when the table is made.
        - keep: as of Session.allocate, but not False. By default True.
        - grain: "extent", or "block" for a permission for each value.
        - blocks: "objects", or "chunks" for memory of this session alone.
        """
        return Table(_native.Table.create(self, name, options))

    def open_table(self, at: str | ObjectRef, read_only: bool = False) -> Table:
        """Opens the table with a name, or with a reference to its head."""
        return Table(_native.Table.open(self, at, read_only))

    def create_queue(self, name: str | None = None, **options: Any) -> Queue:
        """Makes an empty queue, and gives it a name if one is given.

        Options:

        - segment_slots: number of slots of a segment, 64 to 1024.
        - cell_bytes: number of bytes of a slot's cell. A longer entry takes several slots.
        - segments_max: largest number of segments at a time.
        - claims: True: entries are claimed and acknowledged, not popped.
        - lease: seconds for which a client that has died can hold up others.
        - keep: as of Session.allocate, but not False. By default True.
        """
        return Queue(_native.Queue.create(self, name, options))

    def open_queue(self, at: str | ObjectRef) -> Queue:
        """Opens the queue with a name, or with a reference to its head."""
        return Queue(_native.Queue.open(self, at))

    def acreate_table(self, name: str | None = None, **options: Any) -> Opening[Table]:
        """Version of create_table for asyncio.

        Use it as ``table = await session.acreate_table()``, or as ``async with session.acreate_table() as table``.

        A thread of the event loop's pool uses the session meanwhile. Coroutines wait for it, and calls get the error
        named ``in-use``.
        """
        return Opening(lambda: self.create_table(name, **options))

    def aopen_table(self, at: str | ObjectRef, read_only: bool = False) -> Opening[Table]:
        """Version of open_table for asyncio: see acreate_table."""
        return Opening(lambda: self.open_table(at, read_only))

    def acreate_queue(self, name: str | None = None, **options: Any) -> Opening[Queue]:
        """Version of create_queue for asyncio: see acreate_table."""
        return Opening(lambda: self.create_queue(name, **options))

    def aopen_queue(self, at: str | ObjectRef) -> Opening[Queue]:
        """Version of open_queue for asyncio: see acreate_table."""
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
    cuda: bool | str | os.PathLike[str] = False,
) -> Session:
    """Opens a session with the node at an address.

    An address is ``shm:/run/portcullis.sock``, ``udp:host:port``, ``rdma:host:port``, or ``name:tenant/node``, which is
    looked up in the cluster's directory.

    - arena: size of the memory through which reads, writes and views go, 4 MiB by default. A read in place or an
      operation of a batch needs room for all its bytes in one piece of it; read_into, read_bytes and write do not. The
      node allows arenas up to its ``--arena-max``, and takes the memory of all of them from its ``--ports-memory``.
    - certificates, tenant: for nodes of other machines: a folder that ``portcullis certificates`` has made, and the
      tenant for which the session acts.
    - within: seconds for which the attach and each operation may wait for the node. After this time the operation fails
      with the error named ``timed-out``, and the session goes on.
    - cuda: True: the arena is registered with CUDA, so that GPUs copy from and to it while the program goes on, as with
      the pinned memory of torch. Raises the MachineError named ``no-cuda`` or ``cuda-refused`` if that is impossible.
      "auto": the arena is registered if that is possible, and Session.cuda says whether it was. The path of
      ``libcuda.so.1``: as True, for a driver that the loader does not find. False: nothing is loaded.

    >>> with portcullis_memory.connect(node.address) as session:
    ...     session.closed
    False
    """
    return Session(address, arena=arena, certificates=certificates, tenant=tenant, within=within, cuda=cuda)


def _remove(folder: str, owner: int) -> None:
    """Removes the folder of a node's socket. In a child of fork the folder belongs to the parent, and stays."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class Node(_native.Node):
    """A node inside this process, for tests. Used as a context manager, it ends at the end of the block.

    - memory: size of the memory that the node lends.
    - socket: path of a socket at which other processes of this user can connect to the node, too. By default the node
      makes a socket in a folder of its own.

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

    def connect(
        self, tenant: str = "local", arena: Size = "4MiB", *, cuda: bool | str | os.PathLike[str] = False
    ) -> Session:
        """Opens a session with the node, for a tenant of any name. arena, cuda: see portcullis_memory.connect."""
        return Session(self, arena=arena, tenant=tenant, cuda=cuda)

    def stop(self) -> None:
        """Ends the node, and everything on it. If the node was stopped already, this does nothing."""
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
