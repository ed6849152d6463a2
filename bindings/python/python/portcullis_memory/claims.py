"""Claims: entries of a queue that come again where their consumer does not acknowledge them."""

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
    """Checks what a call says of entries that are delivered too often."""
    if (deliveries_max is None) != (dead_letters is None):
        raise TypeError("deliveries_max and dead_letters go together")
    if deliveries_max is not None and not 1 <= deliveries_max <= DELIVERIES_MAX:
        raise ValueError(f"deliveries_max is 1 to {DELIVERIES_MAX}, not {deliveries_max}: more deliveries are not counted")


def time_left(timeout: float | None) -> Callable[[], float | None]:
    """Returns what tells how much of a time is left: a call that claims several entries waits for all of them together."""
    if timeout is None:
        return lambda: None
    until = time.monotonic() + timeout
    return lambda: max(0.0, until - time.monotonic())


@contextlib.contextmanager
def unless_ended() -> Iterator[None]:
    """Lets a claim be over: another consumer has the entry then."""
    try:
        yield
    except Error as error:
        if error.name != "claim-ended":
            raise


class Claim:
    """An entry that this consumer has claimed: Queue.claim and Queue.aclaim return it.

    As a block, ``with`` or ``async with``, it acknowledges the entry at its end, and gives the entry back where the block ends with an
    exception.
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
        """How often the entry was delivered, with this time. Beyond 1,023 it is not counted any more."""
        return self._deliveries

    def acknowledge(self) -> None:
        """Ends the claim: the entry is done, and does not come again.

        Raises EndedError named ``claim-ended`` where the lease was over and another consumer got the entry.
        """
        self._queue._native.acknowledge(self._words)

    def give_back(self) -> None:
        """Ends the claim without the entry being done: it comes again at once. Raises as acknowledge."""
        self._queue._native.give_claim_back(self._words)

    def extend(self, lease: float) -> None:
        """Has the claim last for `lease` seconds from now on. Raises as acknowledge."""
        self._words = self._queue._native.extend_claim(self._words, lease)

    async def aacknowledge(self) -> None:
        """As acknowledge."""
        await self._queue._run(lambda: self._queue._native.acknowledge(self._words, later=True))

    async def agive_back(self) -> None:
        """As give_back."""
        await self._queue._run(lambda: self._queue._native.give_claim_back(self._words, later=True))

    async def aextend(self, lease: float) -> None:
        """As extend."""
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
        # The exception that ends the block says more, and an entry that is not given back comes again after the lease.
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
