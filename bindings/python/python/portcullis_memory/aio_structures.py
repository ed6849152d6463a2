"""The coroutines of tables and queues. As with sessions, any number of them can run at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from portcullis_memory import _native
from portcullis_memory.aio import BUSY_WAIT, Driver
from portcullis_memory.claims import Claim, check_dead_letters, time_left, unless_ended
from portcullis_memory.errors import Error

if TYPE_CHECKING:
    from portcullis_memory.structures import Queue
    from portcullis_memory.typing import Bytes

__all__ = ["AwaitingQueue", "AwaitingTable"]

Native = TypeVar("Native", _native.Table, _native.Queue)


class _StructureDriver(Driver):
    """The operations of one table or queue."""

    def __init__(self, native: _native.Table | _native.Queue, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(native, loop)
        self.native = native

    async def run(self, begin: Callable[[], int]) -> Any:
        """Carries out one operation."""
        while True:
            try:
                number = begin()
                break
            except Error as error:
                if error.name != "in-use":
                    raise
            await asyncio.sleep(BUSY_WAIT)
        future = self.under_way[number] = self.loop.create_future()
        self.turn_at_once()
        return await self.outcome(future)

    def is_idle(self) -> bool:
        # An operation whose coroutine was cancelled goes on: others may wait for what it holds.
        return not self.under_way and self.native.under_way() == 0

    def discard(self, result: Any) -> None:
        if isinstance(self.native, _native.Queue):
            entries = [result] if isinstance(result, bytes) else result if isinstance(result, list) else []
            with contextlib.suppress(Error):
                self.native.give_back(entries)
                if isinstance(result, tuple):
                    self.native.give_claim_back(result[2])


class _AwaitingStructure(Generic[Native]):
    """The common part of the coroutines of tables and of queues."""

    _native: Native
    _driving: _StructureDriver | None = None

    async def _run(self, begin: Callable[[], int]) -> Any:
        loop = asyncio.get_running_loop()
        driver = self._driving
        if driver is None or driver.loop is not loop:
            if driver is not None:
                driver.abandon()
            driver = self._driving = _StructureDriver(self._native, loop)
        return await driver.run(begin)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Surrounds the end of the handle.

        The loop does not watch the handle's descriptor meanwhile. Afterwards the coroutines that wait for the handle
        get an error.
        """
        driver, self._driving = self._driving, None
        if driver is not None:
            driver.rest()
            driver.leave()
        try:
            yield
        finally:
            if driver is not None:
                driver.closed()

    async def aclose(self) -> None:
        """Coroutine version of close. A thread of the event loop's pool waits for the end."""
        with self._ending():
            await asyncio.to_thread(self._native.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except Error:
            # No error may hide the exception that ends the block.
            if error is None:
                raise


class AwaitingTable(_AwaitingStructure[_native.Table]):
    """The coroutines of a table.

    If a coroutine is cancelled, its operation may be carried out or not, but only as a whole.

    >>> async def main():
    ...     async with session.acreate_table() as table:
    ...         await asyncio.gather(*(table.aset(b"%d" % n, b"%d" % (n * n)) for n in range(100)))
    ...         return await table.aget(b"12"), await table.apop(b"99"), await table.alength()
    >>> asyncio.run(main())
    (b'144', b'9801', 99)
    """

    async def aget(self, key: Bytes, default: bytes | None = None) -> bytes | None:
        """Coroutine version of Table.get."""
        value: bytes | None = await self._run(lambda: self._native.get(key, later=True))
        return default if value is None else value

    async def aget_many(self, keys: Iterable[Bytes]) -> list[bytes | None]:
        """Coroutine version of Table.get_many."""
        listed = list(keys)
        return cast("list[bytes | None]", await self._run(lambda: self._native.get_many(listed, later=True)))

    async def _store(
        self, key: Bytes, value: Bytes, condition: str, ttl: float | None, expected: Bytes | None = None
    ) -> str:
        store = self._native.store
        return cast(str, await self._run(lambda: store(key, value, condition, expected, ttl, later=True)))

    async def aset(self, key: Bytes, value: Bytes, ttl: float | None = None) -> None:
        """Coroutine version of Table.set."""
        await self._store(key, value, "always", ttl)

    async def ainsert(self, key: Bytes, value: Bytes, ttl: float | None = None) -> bool:
        """Coroutine version of Table.insert."""
        return await self._store(key, value, "absent", ttl) == "inserted"

    async def areplace(self, key: Bytes, value: Bytes, ttl: float | None = None) -> bool:
        """Coroutine version of Table.replace."""
        return await self._store(key, value, "present", ttl) == "replaced"

    async def acompare_and_set(self, key: Bytes, expected: Bytes, value: Bytes, ttl: float | None = None) -> bool:
        """Coroutine version of Table.compare_and_set."""
        return await self._store(key, value, "equals", ttl, expected) == "replaced"

    async def aremove(self, key: Bytes) -> bool:
        """Coroutine version of Table.remove."""
        return cast(bool, await self._run(lambda: self._native.remove(key, later=True)))

    async def apop(self, key: Bytes, default: bytes | None = None) -> bytes | None:
        """Coroutine version of Table.pop, with a default: a key that is not in the table is no error.

        If the coroutine is cancelled, the key may be removed.
        """
        value: bytes | None = await self._run(lambda: self._native.take(key, later=True))
        return default if value is None else value

    async def akeys(self) -> list[bytes]:
        """Returns the keys, as one scan of the table finds them."""
        return cast("list[bytes]", await self._run(lambda: self._native.keys(later=True)))

    async def aitems(self) -> list[tuple[bytes, bytes]]:
        """Returns the keys and their values, as one scan of the table finds them."""
        return cast("list[tuple[bytes, bytes]]", await self._run(lambda: self._native.items(later=True)))

    async def alength(self) -> int:
        """Returns the number of keys. This reads the whole table."""
        return cast(int, await self._run(lambda: self._native.length(later=True)))

    async def aremove_expired(self) -> int:
        """Coroutine version of Table.remove_expired."""
        return cast(int, await self._run(lambda: self._native.remove_expired(later=True)))

    async def asweep(self) -> Mapping[str, int]:
        """Coroutine version of Table.sweep."""
        return cast("Mapping[str, int]", await self._run(lambda: self._native.sweep(later=True)))

    async def astatistics(self) -> Mapping[str, int]:
        """Coroutine version of Table.statistics."""
        return cast("Mapping[str, int]", await self._run(lambda: self._native.statistics(later=True)))

    async def adestroy(self, name: str | None = None) -> None:
        """Coroutine version of Table.destroy. A thread of the event loop's pool waits for the end."""
        with self._ending():
            await asyncio.to_thread(self._native.destroy, name)


class AwaitingQueue(_AwaitingStructure[_native.Queue]):
    """The coroutines of a queue. One handle can wait for entries and push others meanwhile.

    >>> async def main():
    ...     async with session.acreate_queue() as queue:
    ...         popped = asyncio.gather(queue.apop(), queue.apop())
    ...         await queue.apush(b"first")
    ...         await queue.apush(b"second")
    ...         return sorted(await popped), await queue.apop(timeout=0)
    >>> asyncio.run(main())
    ([b'first', b'second'], None)
    """

    async def apush(self, entry: Bytes) -> None:
        """Coroutine version of Queue.push."""
        await self._run(lambda: self._native.push(entry, later=True))

    async def apop(self, timeout: float | None = None) -> bytes | None:
        """Coroutine version of Queue.pop.

        If the coroutine is cancelled while it takes an entry, the handle's next pop returns that entry.
        """
        return cast("bytes | None", await self._run(lambda: self._native.pop_later(timeout)))

    async def apop_many(self, most: int) -> list[bytes]:
        """Coroutine version of Queue.pop_many.

        If the coroutine is cancelled while it takes entries, the handle's next pops return them.
        """
        return cast("list[bytes]", await self._run(lambda: self._native.pop_many_later(most)))

    async def aclaim(
        self,
        lease: float,
        timeout: float | None = None,
        *,
        deliveries_max: int | None = None,
        dead_letters: Queue | None = None,
    ) -> Claim | None:
        """Coroutine version of Queue.claim.

        If the coroutine is cancelled while it claims an entry, the entry is given back.
        """
        check_dead_letters(deliveries_max, dead_letters)
        left = time_left(timeout)
        while True:
            found = await self._run(lambda: self._native.claim_later(lease, left()))
            if found is None:
                return None
            claim = Claim(cast("Queue", self), found)
            if deliveries_max is None or dead_letters is None or claim.deliveries <= deliveries_max:
                return claim
            await dead_letters.apush(claim.entry)
            with unless_ended():
                await claim.aacknowledge()

    async def aend(self) -> None:
        """Coroutine version of Queue.end."""
        await self._run(lambda: self._native.end(later=True))

    async def asweep(self) -> None:
        """Coroutine version of Queue.sweep."""
        await self._run(lambda: self._native.sweep(later=True))

    async def astatistics(self) -> Mapping[str, int]:
        """Coroutine version of Queue.statistics."""
        return cast("Mapping[str, int]", await self._run(lambda: self._native.statistics(later=True)))

    async def adestroy(self) -> None:
        """Coroutine version of Queue.destroy. A thread of the event loop's pool waits for the end."""
        with self._ending():
            await asyncio.to_thread(self._native.destroy)
