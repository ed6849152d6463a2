"""Claims: entries of a queue that are delivered again if their consumer does not acknowledge them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from portcullis_memory._native import DELIVERIES_MAX
from portcullis_memory.errors import Error

if TYPE_CHECKING:
    from portcullis_memory.structures import Queue

__all__ = ["Claim"]


def check_dead_letters(deliveries_max: int | None, dead_letters: Queue | None) -> None:
    """Checks the arguments of a call about entries that are delivered too often."""
    if (deliveries_max is None) != (dead_letters is None):
        raise TypeError("deliveries_max and dead_letters go together")
    if deliveries_max is not None and not 1 <= deliveries_max <= DELIVERIES_MAX:
        raise ValueError(f"deliveries_max is 1 to {DELIVERIES_MAX}, not {deliveries_max}: more deliveries are not counted")


def time_left(timeout: float | None) -> Callable[[], float | None]:
    """Returns a function that returns how much of a time is left.

    A call that claims several entries waits for all of them together for this time.
    """
    if timeout is None:
        return lambda: None
    until = time.monotonic() + timeout
    return lambda: max(0.0, until - time.monotonic())


@contextlib.contextmanager
def unless_ended() -> Iterator[None]:
    """Suppresses the error of a claim that has ended: another consumer has the entry then."""
    try:
        yield
    except Error as error:
        if error.name != "claim-ended":
            raise


class Claim:
    """An entry that this consumer has claimed. Queue.claim and Queue.aclaim return it.

    Used as a context manager, by ``with`` or ``async with``, the claim acknowledges the entry at the end of the block.
    If the block ends with an exception, it gives the entry back instead.
    """

    def __init__(self, queue: Queue, found: tuple[bytes, int, list[int]]) -> None:
        self._queue = queue
        self._entry, self._deliveries, self._words = found

    @property
    def entry(self) -> bytes:
        """The entry."""
        return self._entry

    @property
    def deliveries(self) -> int:
        """Number of times that the entry was delivered, including this delivery.

        Deliveries beyond 1,023 are not counted.
        """
        return self._deliveries

    def acknowledge(self) -> None:
        """Ends the claim: the entry is done, and is not delivered again.

        Raises the EndedError named ``claim-ended`` if the lease was over and another consumer got the entry.
        """
        self._queue._native.acknowledge(self._words)

    def give_back(self) -> None:
        """Ends the claim of an entry that is not done: the entry is delivered again at once.

        Raises the same errors as acknowledge.
        """
        self._queue._native.give_claim_back(self._words)

    def extend(self, lease: float) -> None:
        """Extends the claim, which then lasts for `lease` seconds from now on.

        Raises the same errors as acknowledge.
        """
        self._words = self._queue._native.extend_claim(self._words, lease)

    async def aacknowledge(self) -> None:
        """Coroutine version of acknowledge."""
        await self._queue._run(lambda: self._queue._native.acknowledge(self._words, later=True))

    async def agive_back(self) -> None:
        """Coroutine version of give_back."""
        await self._queue._run(lambda: self._queue._native.give_claim_back(self._words, later=True))

    async def aextend(self, lease: float) -> None:
        """Coroutine version of extend."""
        self._words = await self._queue._run(
            lambda: self._queue._native.extend_claim(self._words, lease, later=True)
        )

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.acknowledge()
            return
        # No error may hide the exception that ends the block, and an entry that is not given back is delivered again
        # after the lease.
        with contextlib.suppress(Error):
            self.give_back()

    async def __aenter__(self) -> Claim:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.aacknowledge()
            return
        with contextlib.suppress(Error):
            await self.agive_back()

    def __repr__(self) -> str:
        return f"<portcullis_memory.Claim of {len(self._entry)} bytes, delivered {self._deliveries} times>"
