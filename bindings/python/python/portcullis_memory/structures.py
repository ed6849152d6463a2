"""Tables and queues in a node's memory, which many programs use at once."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Iterable, KeysView, Mapping, MutableMapping, ValuesView
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from portcullis_memory import _native
from portcullis_memory.aio_structures import AwaitingQueue, AwaitingTable
from portcullis_memory.claims import Claim, check_dead_letters, time_left, unless_ended

if TYPE_CHECKING:
    from portcullis_memory._native import ObjectRef
    from portcullis_memory.typing import Bytes

__all__ = ["Queue", "Table"]

Default = TypeVar("Default")
_NO_DEFAULT: Any = object()


class _Keys(KeysView[bytes]):
    """The keys of a table. Each use of them reads the table."""


class _Items(ItemsView[bytes, bytes]):
    """The items of a table. One scan of the table returns both keys and values."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._table._native.items())


class _Values(ValuesView[bytes]):
    """The values of a table."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[bytes]:
        return iter([value for _, value in self._table._native.items()])


class Table(AwaitingTable, MutableMapping[bytes, bytes]):
    """A hash table in a node's memory. Session.create_table and Session.open_table return it.

    It is a mapping of bytes to bytes. All programs of the tenant can use it at once; each operation is atomic. A
    program that dies in the middle of an operation holds up no other program for longer than two leases. The table has
    a session of its own. The methods whose names begin with ``a`` are for asyncio.

    >>> with session.create_table() as table:
    ...     table[b"key"] = b"value"
    ...     table[b"key"], table.get(b"other"), len(table), table.get_many([b"key", b"other"])
    (b'value', None, 1, [b'value', None])
    """

    def __init__(self, native: _native.Table) -> None:
        self._native = native

    @property
    def head(self) -> ObjectRef:
        """The object that names the table."""
        return self._native.head

    @property
    def closed(self) -> bool:
        """Whether this handle was closed."""
        return self._native.closed

    def __getitem__(self, key: Bytes) -> bytes:
        value = self._native.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Bytes, value: Bytes) -> None:
        self._native.store(key, value, "always")

    def __delitem__(self, key: Bytes) -> None:
        if not self._native.remove(key):
            raise KeyError(key)

    @overload
    def pop(self, key: Bytes) -> bytes: ...
    @overload
    def pop(self, key: Bytes, default: Default) -> bytes | Default: ...
    def pop(self, key: Bytes, default: Any = _NO_DEFAULT) -> Any:
        """Removes a key, and returns the value that it had then.

        If several programs pop one key, one of them gets the value.

        >>> with session.create_table() as table:
        ...     table[b"job"] = b"1"
        ...     table.pop(b"job"), table.pop(b"job", None)
        (b'1', None)
        """
        value = self._native.take(key)
        if value is None:
            if default is _NO_DEFAULT:
                raise KeyError(key)
            return default
        return value

    def __contains__(self, key: object) -> bool:
        return self._native.get(cast("Bytes", key)) is not None

    def __iter__(self) -> Iterator[bytes]:
        """Iterates over the keys, as one scan of the table finds them.

        A key that is in the table all the time is returned exactly once.
        """
        return iter(self._native.keys())

    def __len__(self) -> int:
        """Returns the number of keys. This reads the whole table."""
        return self._native.length()

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        # Two handles on one table are equal. To compare the contents of tables, make dicts of them.
        return self.head == other.head if isinstance(other, Table) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.head)

    def keys(self) -> KeysView[bytes]:
        """Returns a view of the keys."""
        return _Keys(self)

    def items(self) -> ItemsView[bytes, bytes]:
        """Returns a view of the keys and their values. An iteration over it is one scan of the table."""
        return _Items(self)

    def values(self) -> ValuesView[bytes]:
        """Returns a view of the values."""
        return _Values(self)

    def get_many(self, keys: Iterable[Bytes]) -> list[bytes | None]:
        """Returns the values of several keys, in the keys' order.

        The keys are looked up at once: two round trips for all of them.
        """
        return self._native.get_many(list(keys))

    def insert(self, key: Bytes, value: Bytes, ttl: float | None = None) -> bool:
        """Adds a key. Returns False if it was in the table before. ttl: seconds after which the key expires."""
        return self._native.store(key, value, "absent", None, ttl) == "inserted"

    def set(self, key: Bytes, value: Bytes, ttl: float | None = None) -> None:
        """Gives a key a value, whether it was in the table or not. ttl: see insert."""
        self._native.store(key, value, "always", None, ttl)

    def replace(self, key: Bytes, value: Bytes, ttl: float | None = None) -> bool:
        """Gives a key that is in the table another value. Returns whether the key is in the table. ttl: see insert."""
        return self._native.store(key, value, "present", None, ttl) == "replaced"

    def compare_and_set(self, key: Bytes, expected: Bytes, value: Bytes, ttl: float | None = None) -> bool:
        """Gives a key another value if it has the value `expected`.

        Returns whether it had that value. ttl: see insert.
        """
        return self._native.store(key, value, "equals", expected, ttl) == "replaced"

    def remove(self, key: Bytes) -> bool:
        """Removes a key. Returns whether it was in the table."""
        return self._native.remove(key)

    def remove_expired(self) -> int:
        """Removes the keys whose time to live has ended. Returns their number.

        No program gets these keys any more, but their memory is freed only by this call, or when the keys are stored
        again.
        """
        return self._native.remove_expired()

    def sweep(self) -> Mapping[str, int]:
        """Frees the memory that dead programs have left, and returns what was freed.

        This takes two leases and more. Other programs go on meanwhile.
        """
        return self._native.sweep()

    def statistics(self) -> Mapping[str, int]:
        """Returns the size and the fill of the table, as one scan finds them."""
        return self._native.statistics()

    def close(self) -> None:
        """Closes this handle. The table stays. If the handle is closed already, this does nothing."""
        with self._ending():
            self._native.close()

    def destroy(self, name: str | None = None) -> None:
        """Frees all memory of the table, and removes its name. Other handles on the table cannot be used any more."""
        with self._ending():
            self._native.destroy(name)

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self, error)

    def __repr__(self) -> str:
        return f"<portcullis_memory.Table {self.head}{', closed' if self.closed else ''}>"


class Queue(AwaitingQueue):
    """A queue in a node's memory, for many producers and consumers.

    Session.create_queue and Session.open_queue return it.

    An entry is pushed once, and popped once. An entry whose consumer dies after it has popped it is lost. In a queue of
    claims (``create_queue(claims=True)``) entries are claimed, and are delivered again unless they are
    acknowledged. The queue has a session of its own. The methods whose names begin with ``a`` are for asyncio.

    >>> with session.create_queue() as queue:
    ...     queue.push(b"first")
    ...     queue.push(b"second")
    ...     queue.pop(), queue.pop_many(10), queue.pop(timeout=0)
    (b'first', [b'second'], None)
    """

    def __init__(self, native: _native.Queue) -> None:
        self._native = native

    @property
    def head(self) -> ObjectRef:
        """The object that names the queue."""
        return self._native.head

    @property
    def closed(self) -> bool:
        """Whether this handle was closed."""
        return self._native.closed

    def push(self, entry: Bytes) -> None:
        """Adds an entry at the end of the queue."""
        self._native.push(entry)

    def pop(self, timeout: float | None = None) -> bytes | None:
        """Takes the first entry.

        Waits for one for `timeout` seconds, or without a limit. Returns None if there was none.

        Raises the TenantError named "queue-closed" if the queue was ended and all entries were taken.
        """
        return self._native.pop(timeout)

    def pop_many(self, most: int) -> list[bytes]:
        """Takes the first entries, at most `most` of them, at one moment.

        Does not wait. Returns an empty list if the queue is empty.
        """
        return self._native.pop_many(most)

    def claim(
        self,
        lease: float,
        timeout: float | None = None,
        *,
        deliveries_max: int | None = None,
        dead_letters: Queue | None = None,
    ) -> Claim | None:
        """Claims an entry for `lease` seconds.

        The queue must be made with ``claims=True``, and its entries cannot be popped.

        Waits for an entry as pop does. Unless the claim is acknowledged, the entry is delivered again after the lease:
        each entry is delivered at least once. An entry that was delivered `deliveries_max` times is pushed to
        `dead_letters` instead, and may arrive there twice.

        >>> with session.create_queue(claims=True) as jobs:
        ...     jobs.push(b"job")
        ...     with jobs.claim(30) as claim:
        ...         print(claim.entry, claim.deliveries)
        ...     jobs.claim(30, timeout=0)
        b'job' 1
        """
        check_dead_letters(deliveries_max, dead_letters)
        left = time_left(timeout)
        while True:
            found = self._native.claim(lease, left())
            if found is None:
                return None
            claim = Claim(self, found)
            if deliveries_max is None or dead_letters is None or claim.deliveries <= deliveries_max:
                return claim
            dead_letters.push(claim.entry)
            with unless_ended():
                claim.acknowledge()

    def end(self) -> None:
        """Ends the queue: no program can push any more, and consumers take the entries that are left."""
        self._native.end()

    def sweep(self) -> None:
        """Gives back consumed memory, and frees the memory that dead programs have left.

        Other operations do the same as they go on.
        """
        self._native.sweep()

    def statistics(self) -> Mapping[str, int]:
        """Returns the size and the fill of the queue."""
        return self._native.statistics()

    def close(self) -> None:
        """Closes this handle. The queue stays. If the handle is closed already, this does nothing."""
        with self._ending():
            self._native.close()

    def destroy(self) -> None:
        """Frees all memory of the queue, with the entries that were not popped, and removes its name."""
        with self._ending():
            self._native.destroy()

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self, error)

    def __repr__(self) -> str:
        return f"<portcullis_memory.Queue {self.head}{', closed' if self.closed else ''}>"


def _close(structure: Any, error: BaseException | None) -> None:
    """Closes a structure at the end of a block. An error of closing does not hide the exception that ends the block."""
    try:
        structure.close()
    except Exception:
        if error is None:
            raise
