"""Blocks in the memory of several nodes, each under a key that determines its bytes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from portcullis_memory import _native
from portcullis_memory.errors import Error

__all__ = ["BlockStore", "ListedBlock", "NodeStatus", "PutResult"]


@dataclass(frozen=True, slots=True)
class PutResult:
    """The end of a put."""

    #: Number of nodes that have the whole block.
    copies: int
    #: If there are fewer copies than wanted: the last reason.
    error: Error | None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The state of a node, as a store knows it."""

    #: The node's name in the directory, or its address.
    name: str
    #: The part of the blocks that the node should have: MiB of memory, or 1 for each address.
    weight: int
    #: Whether the node is on this machine.
    is_near: bool
    #: The reason why the node is not reached now. None: it is.
    lost: str | None
    #: Counts of the store's operations on the node: hits, absent, late, stored, evicted and others.
    counters: dict[str, int]


@dataclass(frozen=True, slots=True)
class ListedBlock:
    """A block in a node's list."""

    #: The key.
    key: bytes
    #: Number of bytes.
    length: int
    #: Whether no client evicts the block.
    is_pinned: bool


class BlockStore(_native.BlockStore):
    """Blocks in the memory of several nodes.

    Bytes under a key never change: the key determines them, as the hash of a prompt's tokens determines their KV cache.
    A hit is the whole block that was stored under this key, read under a live permission. Everything else is a miss.

    ::

        store = BlockStore(["shm:/run/a.sock", "udp:memory2.lan:7472"], copies=2)
        store.put(b"key", block)          # 2: both nodes have it
        store.get_into(b"key", block)     # True: the buffer has the whole block

    - nodes: addresses of nodes, or ``"name:bank/kv"`` for all nodes that are registered below this name in the directory.
      Nodes that join and leave are noticed then.
    - copies: number of nodes on which each block is stored. A block with N copies outlives N - 1 of them.
    - table: the name of the blocks' table in the tenant, on each node.
    - lease: seconds for which a look-up holds the blocks that it finds. 0: it holds nothing.
    - leases_max: largest number of blocks that look-ups hold on a node at a time.
    - evicts: whether a store without room evicts blocks that have not been used for long.
    - keep: as of Session.allocate, but not False.
    - arena: memory for the transfers of each node.
    - tenant, certificates: as of connect, for nodes on other machines.
    - within: seconds after which an operation goes on with another node if one makes no progress.
    - young_for: seconds for which blocks are copied to a node that has joined, was started anew, or has freed its blocks
      since no client was left.

    Any thread may use a store. A child of fork opens its own. **A buffer must not be changed before its put has ended,
    and not be used before its get has ended**: the threads of the store use it, without Python's lock.

    A buffer is an object with Python's buffer protocol, such as bytes, bytearray, memoryview or a numpy array; or a torch
    tensor on the CPU. Its bytes lie one after another.
    """

    # Guards the attributes below, of all stores: it is held for moments.
    _waiting = threading.RLock()
    # The event loop whose coroutines wait, and the end that each awaits, by the number of the operation.
    _loop: asyncio.AbstractEventLoop | None = None
    _awaited: dict[int, asyncio.Future[list[Any]]] | None = None
    _closing = False

    def put(self, key: bytes | str, block: Any) -> int:
        """Stores a block, and returns the number of nodes that have it.

        Raises the reason if no node has it.
        """
        return _copies(self.put_many([key], [block])[0])

    def put_many(self, keys: Sequence[bytes | str], blocks: Sequence[Any]) -> list[PutResult]:
        """Stores blocks. Returns the end of each."""
        return _puts(self.wait(self.begin_put(list(keys), _buffers(blocks))))

    def get(self, key: bytes | str) -> bytearray | None:
        """Reads a block. None: a miss."""
        length = self.look_up([key])[0]
        if length is None:
            return None
        block = bytearray(length)
        return block if self.get_into(key, block) else None

    def get_into(self, key: bytes | str, buffer: Any) -> bool:
        """Reads a block into a buffer of its length. Returns whether the buffer has the whole block."""
        return self.get_many_into([key], [buffer])[0]

    def get_many_into(self, keys: Sequence[bytes | str], buffers: Sequence[Any]) -> list[bool]:
        """Reads blocks into buffers, each of which has its block's length.

        Returns for each whether the buffer has the whole block. After a miss it has any bytes.
        """
        return _hits(self.wait(self.begin_get(list(keys), _buffers(buffers))))

    def contains(self, key: bytes | str) -> bool:
        """Whether a key has a block. See look_up."""
        return self.look_up([key])[0] is not None

    def look_up(self, keys: Iterable[bytes | str]) -> list[int | None]:
        """Returns the length of each key's block, or None.

        The node holds each block that was found for the next read of this store. The read finds the block, whatever
        others do, if it begins within half of the lease.
        """
        found: list[int | None] = self.wait(self.begin_look_up(list(keys)))
        return found

    def remove(self, key: bytes | str) -> int:
        """Removes a block. Returns the number of copies that were removed.

        Raises the error if a copy may be left on a node that was reached. A copy on a lost node may be left in any case.
        """
        return self.remove_many([key])[0]

    def remove_many(self, keys: Iterable[bytes | str]) -> list[int]:
        """Removes blocks. Returns the number of copies of each that were removed. Raises as remove, after all are done."""
        return _removed(self.wait(self.begin_remove(list(keys))))

    def status(self) -> list[NodeStatus]:
        """Returns the state of each node. Sends nothing."""
        return [NodeStatus(**row) for row in self._status()]

    def list_blocks(self) -> dict[str, list[ListedBlock] | Error]:
        """Returns the blocks of each node, by its name. The error, for a node that cannot be reached."""
        return {
            name: blocks if isinstance(blocks, Error) else [ListedBlock(*block) for block in blocks]
            for name, blocks in self._list()
        }

    # -- asyncio -------------------------------------------------------------------------------------------------------

    async def aput(self, key: bytes | str, block: Any) -> int:
        """Version of put for asyncio."""
        return _copies((await self.aput_many([key], [block]))[0])

    async def aput_many(self, keys: Sequence[bytes | str], blocks: Sequence[Any]) -> list[PutResult]:
        """Version of put_many for asyncio. If it is cancelled, the blocks are stored or not, and the buffers stay in use."""
        return _puts(await self._end_of(self.begin_put, list(keys), _buffers(blocks)))

    async def aget_many_into(self, keys: Sequence[bytes | str], buffers: Sequence[Any]) -> list[bool]:
        """Version of get_many_into for asyncio. If it is cancelled, the buffers stay in use until the read has ended."""
        return _hits(await self._end_of(self.begin_get, list(keys), _buffers(buffers)))

    async def aget_into(self, key: bytes | str, buffer: Any) -> bool:
        """Version of get_into for asyncio."""
        return (await self.aget_many_into([key], [buffer]))[0]

    async def aget(self, key: bytes | str) -> bytearray | None:
        """Version of get for asyncio."""
        length = (await self.alook_up([key]))[0]
        if length is None:
            return None
        block = bytearray(length)
        return block if await self.aget_into(key, block) else None

    async def alook_up(self, keys: Iterable[bytes | str]) -> list[int | None]:
        """Version of look_up for asyncio."""
        found: list[int | None] = await self._end_of(self.begin_look_up, list(keys))
        return found

    async def acontains(self, key: bytes | str) -> bool:
        """Version of contains for asyncio."""
        return (await self.alook_up([key]))[0] is not None

    async def aremove_many(self, keys: Iterable[bytes | str]) -> list[int]:
        """Version of remove_many for asyncio."""
        return _removed(await self._end_of(self.begin_remove, list(keys)))

    async def aremove(self, key: bytes | str) -> int:
        """Version of remove for asyncio."""
        return (await self.aremove_many([key]))[0]

    def _end_of(self, begin: Callable[..., int], *arguments: list[Any]) -> asyncio.Future[list[Any]]:
        """Begins an operation, and returns its end, for the event loop that runs."""
        loop = asyncio.get_running_loop()
        with self._waiting:
            if self._closing:
                raise RuntimeError("the store is being closed")
            if self._loop is not None and self._loop is not loop and not self._loop.is_closed():
                raise RuntimeError("coroutines of another event loop wait for this store: open another one for this loop")
            number = begin(*arguments)
            end: asyncio.Future[list[Any]] = loop.create_future()
            if self._awaited is None:
                self._awaited = {}
            self._awaited[number] = end
            if self._loop is not loop:
                # Operations of a loop that was closed are still in the way: their ends are taken, and reach no coroutine.
                self._loop = loop
                loop.add_reader(self.fileno(), self._take_ends)
        # The operation may have ended before the descriptor was watched.
        self._take_ends()
        return end

    def _take_ends(self) -> None:
        with self._waiting:
            awaited = self._awaited or {}
            if self._closing:
                return
            ended = [(awaited.pop(number), end) for number, end in self.take(list(awaited))]
            if not awaited and self._loop is not None:
                self._loop.remove_reader(self.fileno())
                self._loop = None
        for future, end in ended:
            _resolve(future, end)

    # -- The end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the store, when the operations under way have ended. The blocks stay.

        Coroutines that wait for an operation get its end. If the store is closed already, this does nothing.
        """
        with self._waiting:
            loop, self._loop, self._closing = self._loop, None, True
            awaited, self._awaited = self._awaited or {}, None
        if loop is not None and not loop.is_closed():
            self._leave(loop)
        for number, future in awaited.items():
            _resolve(future, self.wait(number))
        super().close()

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the watch of the descriptor, before it is closed and another one gets its number."""
        if asyncio._get_running_loop() is loop:
            loop.remove_reader(self.fileno())
            return
        left = threading.Event()

        def leave() -> None:
            loop.remove_reader(self.fileno())
            left.set()

        loop.call_soon_threadsafe(leave)
        # A loop that stands still for so long, or that has stopped, watches a closed descriptor, which does no harm.
        left.wait(1.0)

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> BlockStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _resolve(future: asyncio.Future[list[Any]], end: list[Any]) -> None:
    """Gives a coroutine the end that it awaits, from any thread."""

    def resolve() -> None:
        if not future.done():
            future.set_result(end)

    loop = future.get_loop()
    if asyncio._get_running_loop() is loop:
        resolve()
    else:
        with contextlib.suppress(RuntimeError):  # The loop was closed, and its coroutine with it.
            loop.call_soon_threadsafe(resolve)


def _buffers(objects: Sequence[Any]) -> list[Any]:
    return [_of_tensor(it) if hasattr(it, "data_ptr") else it for it in objects]


def _of_tensor(tensor: Any) -> Any:
    """Returns the bytes of a torch tensor, in place. numpy knows neither all of torch's types nor its devices."""
    if tensor.device.type != "cpu":
        raise TypeError(f"a block is on the CPU, not on {tensor.device}: copy the tensor there first")
    if not tensor.is_contiguous():
        raise TypeError("the bytes of the tensor do not lie one after another: call its method contiguous() first")
    torch = importlib.import_module("torch")
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _copies(put: PutResult) -> int:
    if put.copies == 0 and put.error is not None:
        raise put.error
    return put.copies


def _puts(ends: list[Any]) -> list[PutResult]:
    return [PutResult(copies, error) for copies, error in ends]


def _hits(ends: list[Any]) -> list[bool]:
    return [kind == "hit" for kind, _, _ in ends]


def _removed(ends: list[Any]) -> list[int]:
    for _, error in ends:
        if error is not None:
            raise error
    return [copies for copies, _ in ends]
