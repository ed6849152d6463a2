"""asyncio over a session's descriptor, without a thread: all operations of one turn of the event loop share a doorbell.

The coroutines are methods of Session, and the ones in ``aio_structures`` are methods of Table and Queue. The operations
that they request in one turn of the loop are begun together at the turn's end. The loop then waits for the session's
descriptor, and for a timer if something falls due by time alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

from portcullis_memory import _native
from portcullis_memory.errors import Error

if TYPE_CHECKING:
    from portcullis_memory._native import Batch, ObjectRef, Permission
    from portcullis_memory.typing import Bytes, Size, WritableBytes

__all__ = ["Awaiting", "Driver", "Opening"]


class _Managed(Protocol):
    """An asynchronous context manager that returns itself."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


Opened = TypeVar("Opened", bound=_Managed)

#: Number of bytes of the pieces into which long transfers are cut.
_PIECE = 256 << 10
#: The longest wait for the descriptor, in seconds: a call on the session between two turns undoes the preparation of
#: the descriptor.
_WAIT_MAX = 0.02
#: The pause before the next attempt while another thread is in a call on the session, in seconds.
BUSY_WAIT = 0.001


class Source(Protocol):
    """An object that carries out operations in turns: a session, a table or a queue."""

    def poll(self) -> list[tuple[int, Any]]: ...
    def arm(self) -> float | None: ...
    def fileno(self) -> int: ...
    def forget(self, number: int, /) -> None: ...


class Driver:
    """The operations of one source that coroutines of one event loop wait for."""

    def __init__(self, source: Source, loop: asyncio.AbstractEventLoop) -> None:
        self.source = source
        self.loop = loop
        self.under_way: dict[int, asyncio.Future[Any]] = {}
        self.next_turn: asyncio.Handle | None = None
        self.descriptor: int | None = None

    def begin(self) -> None:
        """Begins the operations that wait for this turn."""

    def discard(self, result: Any) -> None:
        """Gives back whatever a result holds that no coroutine receives."""

    def is_idle(self) -> bool:
        """Whether no turn is needed."""
        return not self.under_way

    async def outcome(self, future: asyncio.Future[Any]) -> Any:
        """Returns the result of an operation. If the coroutine is cancelled, the operation's result is discarded."""
        try:
            return await future
        except asyncio.CancelledError:
            self.forget(future)
            raise

    def forget(self, future: asyncio.Future[Any]) -> None:
        """Forgets an operation for which no coroutine waits any more: its result is discarded."""
        if future.done() and not future.cancelled() and future.exception() is None:
            self.discard(future.result())
        for number, waiting in self.under_way.items():
            if waiting is future:
                del self.under_way[number]
                with contextlib.suppress(Error):
                    self.source.forget(number)
                break

    def turn_at_once(self) -> None:
        """Schedules a turn before the loop waits again."""
        if self.next_turn is None or isinstance(self.next_turn, asyncio.TimerHandle):
            self.rest()
            self.next_turn = self.loop.call_soon(self.turn)

    def rest(self) -> None:
        """Cancels the next turn."""
        if self.next_turn is not None:
            self.next_turn.cancel()
            self.next_turn = None

    def turn(self) -> None:
        """Begins the operations that were added, hands out the results of ended ones, and makes the loop wait."""
        self.rest()
        try:
            self.begin()
            for number, result in self.source.poll():
                self.end(self.under_way.pop(number, None), result)
            if self.is_idle():
                self.leave()
                return
            self.wait()
        except Error as error:
            if error.name == "in-use":
                self.next_turn = self.loop.call_later(BUSY_WAIT, self.turn)
            else:
                self.fail(error)

    def end(self, future: asyncio.Future[Any] | None, result: Any) -> None:
        """Gives a result to the coroutine that waits for it."""
        if future is None or future.done():
            self.discard(result)
        elif isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    def wait(self) -> None:
        """Schedules the next turn for when the source's descriptor is readable, or something falls due by time."""
        if self.descriptor is None:
            descriptor = self.source.fileno()
            self.loop.add_reader(descriptor, self.turn_at_once)
            self.descriptor = descriptor
        within = self.source.arm()
        if within == 0:
            self.next_turn = self.loop.call_soon(self.turn)
        else:
            self.next_turn = self.loop.call_later(_WAIT_MAX if within is None else min(within, _WAIT_MAX), self.turn)

    def leave(self) -> None:
        """Removes the descriptor from the loop, which need not watch it while no operation is under way."""
        if self.descriptor is not None:
            with contextlib.suppress(RuntimeError):
                self.loop.remove_reader(self.descriptor)
            self.descriptor = None

    def fail(self, error: Error) -> None:
        """Ends all operations under way with this error: no other result can arrive for them any more."""
        self.leave()
        waiting = list(self.under_way.values())
        self.under_way.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    def abandon(self) -> None:
        """Gives up the operations under way, because their loop is over. Their results are discarded."""
        self.rest()
        self.leave()
        for number in self.under_way:
            with contextlib.suppress(Error):
                self.source.forget(number)
        self.under_way.clear()

    def closed(self) -> None:
        """Raises the error of a closed source in the coroutines that wait for it."""
        if not self.loop.is_closed():
            self.turn()


class _SessionDriver(Driver):
    """The operations of one session. The operations of one turn are a batch."""

    def __init__(self, session: _native.Session, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(session, loop)
        self.batch = session.batch()
        self.added: list[asyncio.Future[Any]] = []
        self.in_want_of_room: list[asyncio.Future[None]] = []
        #: Number of operations that have ended and that may have left room in the arena.
        self.ends = 0

    async def run(self, add: Callable[[Batch], int]) -> Any:
        """Carries out one operation."""
        while True:
            add(self.batch)
            ends = self.ends
            future = self.loop.create_future()
            self.added.append(future)
            self.turn_at_once()
            try:
                return await self.outcome(future)
            except Error as error:
                if error.name != "arena-full" or (ends == self.ends and not self.under_way):
                    raise
            if ends == self.ends:
                room: asyncio.Future[None] = self.loop.create_future()
                self.in_want_of_room.append(room)
                await room

    def begin(self) -> None:
        if not self.added:
            return
        numbers = self.batch.submit()
        added, self.added = self.added, []
        for number, future in zip(numbers, added, strict=True):
            if future.cancelled():
                self.source.forget(number)
            else:
                self.under_way[number] = future

    def discard(self, result: Any) -> None:
        _discard(result)

    def end(self, future: asyncio.Future[Any] | None, result: Any) -> None:
        super().end(future, result)
        if not (isinstance(result, Error) and result.name == "arena-full"):
            self.ends += 1
            self.there_is_room()

    def there_is_room(self) -> None:
        """Wakes the coroutines that wait for room: the arena may have some again."""
        for room in self.in_want_of_room:
            if not room.done():
                room.set_result(None)
        self.in_want_of_room.clear()

    def fail(self, error: Error) -> None:
        added, self.added = self.added, []
        super().fail(error)
        for future in added:
            if not future.done():
                future.set_exception(error)
        self.there_is_room()


class Opening(Generic[Opened]):
    """An object that is being opened. ``await`` returns it, and ``async with`` closes it at the end of the block.

    A thread of the event loop's pool opens it: only this step has to wait for the operating system.
    """

    def __init__(self, opens: Callable[[], Opened]) -> None:
        self._opens = opens
        self._opened: Opened | None = None

    async def _open(self) -> Opened:
        while True:
            try:
                return await asyncio.to_thread(self._opens)
            except Error as error:
                if error.name != "in-use":
                    raise
            await asyncio.sleep(BUSY_WAIT)

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._open().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._open()
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, trace)


def _discard(result: Any) -> None:
    """Discards a result that no coroutine receives: gives back a permission, or bytes in place."""
    if isinstance(result, _native.Permission | _native.View):
        with contextlib.suppress(Error):
            result.release()


class Awaiting:
    """The coroutines of a session."""

    _driving: _SessionDriver | None = None

    def _driver(self) -> _SessionDriver:
        loop = asyncio.get_running_loop()
        driver = self._driving
        if driver is None or driver.loop is not loop:
            if driver is not None:
                driver.abandon()
            driver = self._driving = _SessionDriver(cast(_native.Session, self), loop)
        return driver

    def close(self) -> None:
        """Closes the session, and ends its permissions. If the session is closed already, this does nothing."""
        driver = self._driving
        if driver is not None:
            driver.leave()
        super().close()  # type: ignore[misc]
        if driver is not None:
            driver.closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not cast(_native.Session, self).closed:
            self.close()

    async def aread_into(self, permission: Permission, buffer: WritableBytes, offset: Size = 0) -> None:
        """Coroutine version of Permission.read_into.

        >>> async def read():
        ...     into = bytearray(5)
        ...     with session.allocate(64) as permission:
        ...         await session.awrite(permission, b"hello")
        ...         await session.aread_into(permission, into)
        ...     return into
        >>> asyncio.run(read())
        bytearray(b'hello')
        """
        driver = self._driver()
        pieces = _pieces(permission, buffer, offset)
        if pieces is None:
            await driver.run(lambda batch: batch.read_into(permission, buffer, offset))
            return
        await _all(driver.run(_reading(permission, piece, at)) for at, piece in pieces)

    async def aread(self, permission: Permission, length: Size | None = None, offset: Size = 0) -> bytes:
        """Coroutine version of Permission.read_bytes."""
        if length is None and isinstance(offset, int):
            length = max(permission.length - offset, 0)
        if isinstance(length, int) and _PIECE < length <= permission.length:
            into = bytearray(length)
            await self.aread_into(permission, into, offset)
            return bytes(into)
        return cast(bytes, await self._driver().run(lambda batch: batch.read_bytes(permission, length, offset)))

    async def awrite(self, permission: Permission, data: Bytes, offset: Size = 0) -> None:
        """Coroutine version of Permission.write. The data must not change until the write has ended."""
        driver = self._driver()
        pieces = _pieces(permission, data, offset)
        if pieces is None:
            await driver.run(lambda batch: batch.write(permission, data, offset))
            return
        await _all(driver.run(_writing(permission, piece, at)) for at, piece in pieces)

    async def acompare_and_swap(self, permission: Permission, offset: Size, compare: int, swap: int) -> int:
        """Coroutine version of Permission.compare_and_swap."""
        run = self._driver().run
        return cast(int, await run(lambda batch: batch.compare_and_swap(permission, offset, compare, swap)))

    async def afetch_and_add(self, permission: Permission, offset: Size, add: int) -> int:
        """Coroutine version of Permission.fetch_and_add."""
        return cast(int, await self._driver().run(lambda batch: batch.fetch_and_add(permission, offset, add)))

    async def aallocate(
        self,
        size: Size,
        lifetime: float = 1.0,
        rights: str = "rw",
        shared: bool = False,
        keep: bool | float = False,
        alignment: int = 1,
    ) -> Permission:
        """Coroutine version of Session.allocate.

        If the coroutine is cancelled, the permission is revoked when it arrives.
        """
        run = self._driver().run
        return cast(
            "Permission",
            await run(lambda batch: batch.allocate(size, lifetime, rights, shared, keep, alignment)),
        )

    async def aacquire(
        self,
        object: ObjectRef,
        lifetime: float = 1.0,
        rights: str = "r",
        shared: bool | None = None,
        wait: float = 1.0,
        part: tuple[Size, Size] | None = None,
    ) -> Permission:
        """Coroutine version of Session.acquire.

        If the coroutine is cancelled, the permission is revoked when it arrives.
        """
        run = self._driver().run
        return cast(
            "Permission",
            await run(lambda batch: batch.acquire(object, lifetime, rights, shared, wait, part)),
        )

    async def arevoke(self, permission: Permission, free: bool = False) -> None:
        """Coroutine version of Permission.revoke."""
        await self._driver().run(lambda batch: batch.revoke(permission, free))

    async def aextend(self, permission: Permission, seconds: float) -> None:
        """Coroutine version of Permission.extend."""
        await self._driver().run(lambda batch: batch.extend(permission, seconds))


async def _all(parts: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Runs the parts of one transfer together.

    When this returns or raises, none of them uses the caller's buffer any more.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _pieces(permission: Permission, buffer: Bytes, offset: Size) -> list[tuple[int, memoryview]] | None:
    """Cuts a long buffer into pieces, each with its offset.

    Returns None if the buffer is one piece, if memoryview does not support it, or if the permission does not cover it:
    it is then transferred, or refused, as a whole.
    """
    try:
        view = memoryview(buffer)
        if view.nbytes <= _PIECE or not isinstance(offset, int) or offset + view.nbytes > permission.length:
            return None
        flat = view.cast("B")
    except (TypeError, ValueError):
        return None
    return [(offset + at, flat[at : at + _PIECE]) for at in range(0, flat.nbytes, _PIECE)]


def _reading(permission: Permission, piece: memoryview, at: int) -> Callable[[Batch], int]:
    return lambda batch: batch.read_into(permission, piece, at)


def _writing(permission: Permission, piece: memoryview, at: int) -> Callable[[Batch], int]:
    return lambda batch: batch.write(permission, piece, at)
