"""Blocks in a node's memory, each under a key: the storage of ``portcullis_memory.lmcache``, without its threads."""

from __future__ import annotations

import math
import select
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import portcullis_memory

__all__ = ["SESSION_OVER", "Blocks", "Options", "Stored"]

# The beginning of a key's entry in the table: the layout, and the block's length. The object's reference follows.
# Another layout gets another first word.
_ENTRY = struct.Struct("<8sQ")
_LAYOUT = b"PCBLOCK1"

# Largest number of bytes of one access. A longer block is read and written by several accesses.
_PIECE_BYTES = 256 << 10

# Number of accesses that begin together.
_DOORBELL_PIECES = 2

# Lifetimes of the permissions of one call, in seconds, if the node allows them. The permissions are revoked when the
# call is over. For reads: a process that stands still can hold up the memory of freed blocks for this long. For writes
# they can be longer: no other client wants a new block.
_READ_LIFETIME = 2.0
_WRITE_LIFETIME = 10.0

# A load uses a lease only if this much of it is left, in seconds: the node counts a late read against the client.
_LEASE_MARGIN = 0.5

# Names of errors after which the session cannot be used any more.
SESSION_OVER = frozenset({"session-lost", "node-gone", "node-ended", "local-fault"})


@dataclass(frozen=True, slots=True)
class Options:
    """The place of the blocks, and how they are held: see the parameters of ``portcullis_memory.lmcache.Adapter``."""

    address: str
    table: str
    lease: float
    leases_max: int
    arena: int | str
    keep: bool | float
    session: dict[str, Any]


@dataclass(slots=True)
class _Lease:
    """A lookup's lease of a block.

    It serves ``uses`` loads, and lasts until ``until`` (on the clock of ``time.monotonic``).
    """

    permission: portcullis_memory.Permission
    length: int
    until: float
    uses: int


@dataclass(slots=True)
class Stored:
    """A key that is stored, with its entry once it has one. ``before``: the entry that this one replaces."""

    key: bytes
    data: memoryview
    before: bytes | None
    entry: bytes = b""


class Blocks:
    """The blocks of one table, in a session of their own. One thread at a time may use this object.

    Its methods take the keys of one step: so few that no batch waits for long, and with buffers that fit into the arena
    together. An error of one key is passed to ``note``, with the operation, and the key is a miss. An error of the
    session or of the table is raised.
    """

    def __init__(
        self, options: Options, counts: Counter[str], note: Callable[[str, portcullis_memory.Error], None]
    ) -> None:
        """Connects to the node, and opens the table. A table that does not exist is made."""
        self._options = options
        self._counts = counts
        self._note = note
        self._held: dict[bytes, _Lease] = {}
        self._look_at_leases = 0.0
        self._session = portcullis_memory.connect(options.address, arena=options.arena, **options.session)
        try:
            longest = _longest_lifetime(self._session, max(options.lease, _WRITE_LIFETIME), options.lease)
            self._read_for = min(_READ_LIFETIME, longest)
            self._write_for = min(_WRITE_LIFETIME, longest)
            self._table = self._open()
        except BaseException:
            self._session.close()
            raise

    def _open(self) -> portcullis_memory.Table:
        while True:
            try:
                return self._session.open_table(self._options.table)
            except portcullis_memory.Error as error:
                if error.name != "no-such-name":
                    raise
            try:
                return self._session.create_table(self._options.table, keep=self._options.keep)
            except portcullis_memory.Error as error:
                if error.name != "name-taken":
                    raise  # Otherwise another client has just made the table.

    def close(self) -> None:
        """Ends the leases and the session. The blocks stay."""
        for close in (self._table.close, self._session.close):
            try:
                close()
            except portcullis_memory.Error:
                pass  # The session was lost already.

    # -- Lookups and loads ---------------------------------------------------------------------------------------------

    def look_up(self, keys: list[bytes]) -> list[bool]:
        """Returns, for each key, whether it has a block.

        Each of these blocks then has a lease, as far as the number of leases allows it.
        """
        results = [False] * len(keys)
        lease_for = self._options.lease
        now = time.monotonic()
        fresh: list[tuple[int, int]] = []
        references = []
        for index, (key, entry) in enumerate(zip(keys, self._table.get_many(keys))):
            found = _read_entry(entry)
            if found is None:
                self._counts["exists.absent"] += 1
                continue
            length, reference = found
            lease = self._held.get(key)
            if lease is not None and lease.until - now > lease_for / 2:
                lease.uses += 1
            elif lease_for and len(self._held) + len(fresh) < self._options.leases_max:
                fresh.append((index, length))
                references.append(reference)
                continue
            results[index] = True
        surplus = []
        for (index, length), permission in zip(fresh, self._acquire(references, lease_for)):
            if isinstance(permission, portcullis_memory.Error):
                # Without the lease the block cannot be loaded: a key whose block was freed is a miss now.
                self._note("exists", permission)
                continue
            results[index] = True
            before = self._held.get(keys[index])
            if before is not None:
                surplus.append(before.permission)
            uses = before.uses + 1 if before is not None else 1
            self._held[keys[index]] = _Lease(permission, length, now + lease_for, uses)
        self._release(surplus)
        self._counts["exists.hit"] += results.count(True)
        return results

    def load(self, keys: list[bytes], buffers: list[memoryview]) -> list[bool]:
        """Reads blocks into buffers. Returns, for each key, whether its buffer contains the whole block."""
        results = [False] * len(keys)
        ready: list[int] = []
        blocks: list[tuple[portcullis_memory.Permission, memoryview]] = []
        wanted: list[int] = []
        ended: list[portcullis_memory.Permission] = []
        margin = min(_LEASE_MARGIN, self._options.lease / 2)
        now = time.monotonic()
        for index, (key, buffer) in enumerate(zip(keys, buffers)):
            lease = self._held.get(key)
            if lease is None or lease.until - now < margin or lease.length != len(buffer):
                wanted.append(index)
                continue
            ready.append(index)
            blocks.append((lease.permission, buffer))
            lease.uses -= 1
            if not lease.uses:
                del self._held[key]
                ended.append(lease.permission)
        try:
            found, references = self._find(keys, buffers, wanted)
            for index, permission in zip(found, self._acquire(references, self._read_for)):
                if isinstance(permission, portcullis_memory.Error):
                    self._note("get", permission)
                    continue
                ended.append(permission)
                ready.append(index)
                blocks.append((permission, buffers[index]))
            for index, error in zip(ready, self._transfer("read_into", blocks)):
                if error is not None:
                    self._note("get", error)
                else:
                    results[index] = True
        finally:
            self._release(ended)
        self._counts["get.hit"] += results.count(True)
        return results

    def _find(
        self, keys: list[bytes], buffers: list[memoryview], wanted: list[int]
    ) -> tuple[list[int], list[portcullis_memory.ObjectRef]]:
        """Returns the indexes and the objects of the wanted blocks.

        Keys without a block, or with a block of another length, are left out.
        """
        found = []
        references = []
        entries = self._table.get_many([keys[index] for index in wanted]) if wanted else []
        for index, entry in zip(wanted, entries):
            block = _read_entry(entry)
            if block is None:
                self._counts["get.absent"] += 1
            elif block[0] != len(buffers[index]):
                self._counts["get.length"] += 1
            else:
                found.append(index)
                references.append(block[1])
        return found, references

    @property
    def has_leases(self) -> bool:
        """Whether lookups hold leases of blocks."""
        return bool(self._held)

    def drop_ended_leases(self) -> None:
        """Forgets leases that have ended. Does nothing if it has done so within the last quarter of a lease."""
        now = time.monotonic()
        if now >= self._look_at_leases:
            self._look_at_leases = now + self._options.lease / 4
            for key in [key for key, lease in self._held.items() if lease.until <= now]:
                del self._held[key]

    # -- Stores and deletions ------------------------------------------------------------------------------------------

    def store(self, keys: list[bytes], buffers: list[memoryview], stored: list[Stored]) -> None:
        """Stores blocks under keys that have none.

        Adds the blocks that it has stored to ``stored``, also when it raises.
        """
        blocks = self._to_store(keys, buffers)
        if not blocks:
            return
        written: list[tuple[Stored, portcullis_memory.Permission]] = []
        entered: list[tuple[Stored, portcullis_memory.Permission]] = []
        lost: list[portcullis_memory.Permission] = []
        try:
            self._write(blocks, written)
            while written:
                block, permission = written[-1]
                block.entry = _ENTRY.pack(_LAYOUT, len(block.data)) + bytes(permission.object)
                if block.before is None:
                    is_entered = self._table.insert(block.key, block.entry)
                else:
                    is_entered = self._table.compare_and_set(block.key, block.before, block.entry)
                written.pop()
                if is_entered:
                    entered.append((block, permission))
                else:
                    lost.append(permission)  # Another client was quicker, and has stored the same tokens.
            # The object is kept only now: a process that dies before this leaves a key without a block, and no block
            # without a key.
            for _, permission in entered:
                self._session.keep(permission.object, self._options.keep)
        finally:
            stored += (block for block, _ in entered)
            self._release((*lost, *(permission for _, permission in written)), free=True)
            self._release(permission for _, permission in entered)
        for block, _ in entered:
            # A lease of the block that was replaced would serve later loads with that block.
            lease = self._held.pop(block.key, None)
            if lease is not None:
                self._release([lease.permission])
            if block.before is not None:
                self._free(block.before)
        self._counts["set.stored"] += len(entered)
        self._counts["set.there-already"] += len(lost)

    def _to_store(self, keys: list[bytes], buffers: list[memoryview]) -> list[Stored]:
        """Returns the blocks that are not stored yet. A key that occurs several times is stored once."""
        once = dict(zip(keys, buffers))
        blocks: list[Stored] = []
        there: list[Stored] = []
        references = []
        for (key, data), entry in zip(once.items(), self._table.get_many(list(once))):
            block = Stored(key, data, before=entry)
            found = _read_entry(entry)
            if found is not None and found[0] == len(data):
                there.append(block)
                references.append(found[1])
            else:
                blocks.append(block)
        live = []
        failed = []
        for block, permission in zip(there, self._acquire(references, self._read_for)):
            if not isinstance(permission, portcullis_memory.Error):
                live.append(permission)
            elif isinstance(permission, portcullis_memory.EndedError):
                blocks.append(block)
            elif not isinstance(permission, portcullis_memory.ConflictError):  # Its exclusive holder is storing it.
                failed.append(permission)
        self._release(live)
        if failed:
            raise failed[0]
        self._counts["set.there-already"] += len(keys) - len(blocks)
        return blocks

    def _write(self, blocks: list[Stored], written: list[tuple[Stored, portcullis_memory.Permission]]) -> None:
        """Writes blocks into new objects.

        Adds the blocks that have got an object to ``written``, also when it raises.
        """
        batch = self._session.batch()
        for block in blocks:
            batch.allocate(len(block.data), lifetime=self._write_for, rights="rw", shared=False, keep=False)
        errors: list[portcullis_memory.Error] = []
        for block, permission in zip(blocks, batch.run()):
            if isinstance(permission, portcullis_memory.Error):
                errors.append(permission)
            else:
                written.append((block, permission))
        if not errors:
            outcomes = self._transfer("write", [(permission, block.data) for block, permission in written])
            errors = [outcome for outcome in outcomes if outcome is not None]
        if errors:
            raise errors[0]

    def take_back(self, stored: list[Stored]) -> None:
        """Removes keys that were stored, and frees their blocks."""
        for block in stored:
            self._free(block.entry)
            self._remove(block.key, block.entry)

    def delete(self, keys: list[bytes]) -> None:
        """Removes keys, and frees their blocks. A block of which a client has a lease is freed when the lease ends."""
        for key, entry in zip(keys, self._table.get_many(keys)):
            if entry is None:
                self._counts["delete.absent"] += 1
                continue
            # The block is freed first: a process that dies in between leaves a key without a block, which is a miss.
            self._free(entry)
            self._remove(key, entry)
            self._counts["delete.deleted"] += 1

    def _free(self, entry: bytes) -> None:
        """Frees the block to which an entry leads, as soon as no client has a lease of it."""
        found = _read_entry(entry)
        if found is None:
            return
        try:
            self._session.free(found[1])
        except portcullis_memory.EndedError:
            pass  # The block was freed before.

    def _remove(self, key: bytes, entry: bytes) -> None:
        """Removes a key with this entry.

        If another client has just stored another block under the key, removes and frees that one.
        """
        now = self._table.pop(key, None)
        if now is not None and now != entry:
            self._free(now)

    # -- Permissions and transfers -------------------------------------------------------------------------------------

    def _acquire(
        self, references: list[portcullis_memory.ObjectRef], lifetime: float
    ) -> list[portcullis_memory.Permission | portcullis_memory.Error]:
        """Acquires shared read-only permissions over objects.

        Returns the permission, or the error in its place, for each object.
        """
        if not references:
            return []
        batch = self._session.batch()
        for reference in references:
            batch.acquire(reference, lifetime=lifetime, rights="r", shared=True, wait=0)
        granted: list[portcullis_memory.Permission | portcullis_memory.Error] = batch.run()
        return granted

    def _release(self, permissions: Iterable[portcullis_memory.Permission], free: bool = False) -> None:
        """Ends permissions. A permission that cannot be ended has ended before, or ends with its lifetime."""
        permissions = list(permissions)
        if not permissions:
            return
        try:
            batch = self._session.batch()
            for permission in permissions:
                batch.revoke(permission, free=free)
            batch.run()
        except portcullis_memory.Error as error:
            self._note("revoke", error)

    def _transfer(
        self, verb: str, blocks: list[tuple[portcullis_memory.Permission, memoryview]]
    ) -> list[portcullis_memory.Error | None]:
        """Reads or writes whole blocks, each under its permission. Returns the error, or None, for each block.

        When this returns or raises, no bytes are copied into the blocks any more.
        """
        session = self._session
        outcomes: list[portcullis_memory.Error | None] = [None] * len(blocks)
        pieces = (
            (number, at) for number, (_, block) in enumerate(blocks) for at in range(0, len(block), _PIECE_BYTES)
        )
        under_way: dict[int, tuple[int, int]] = {}
        without_room: list[tuple[int, int]] = []

        def begin(batch: Any, number: int, at: int) -> None:
            permission, block = blocks[number]
            getattr(batch, verb)(permission, block[at : at + _PIECE_BYTES], offset=at)

        def end(piece: tuple[int, int], outcome: Any) -> None:
            if isinstance(outcome, portcullis_memory.Error):
                outcomes[piece[0]] = outcomes[piece[0]] or outcome

        try:
            # Pieces are submitted a few at a time, so that the NIC moves some while this thread copies others.
            while few := list(islice(pieces, _DOORBELL_PIECES)):
                batch = session.batch()
                for piece in few:
                    begin(batch, *piece)
                under_way.update(zip(batch.submit(), few))
            while under_way:
                for number, outcome in session.poll():
                    piece = under_way.pop(number)
                    if isinstance(outcome, portcullis_memory.Error) and outcome.name == "arena-full":
                        without_room.append(piece)
                    else:
                        end(piece, outcome)
                if under_way:
                    within = session.arm()
                    if within != 0:
                        ready = select.poll()  # select() takes no descriptor from 1024 on.
                        ready.register(session.fileno(), select.POLLIN)
                        ready.poll(None if within is None else math.ceil(within * 1000))
        finally:
            for number in under_way:
                session.forget(number)  # A later poll would copy it into a buffer that belongs to the caller again.
        if without_room:  # Blocks larger than the arena: their pieces wait for each other.
            batch = session.batch()
            for piece in without_room:
                begin(batch, *piece)
            for piece, outcome in zip(without_room, batch.run()):
                end(piece, outcome)
        return outcomes


def _longest_lifetime(session: portcullis_memory.Session, wanted: float, least: float) -> float:
    """Returns the longest lifetime of a permission that the node allows, ``wanted`` at most.

    Raises if it is less than ``least``.
    """
    while True:
        try:
            session.allocate(8, lifetime=wanted).revoke(free=True)
        except portcullis_memory.Error as error:
            if error.name == "lifetime-too-long":
                if wanted <= least:
                    raise
                wanted = max(wanted / 2, least)
                continue
            # A node that is full can still serve loads.
            is_full = isinstance(error, (portcullis_memory.TenantError, portcullis_memory.NodeError))
            if not is_full or error.name in SESSION_OVER:
                raise
        return wanted


def _read_entry(entry: bytes | None) -> tuple[int, portcullis_memory.ObjectRef] | None:
    """Returns the length of a block and the reference of its object. None: the entry does not lead to a block."""
    if entry is None or len(entry) <= _ENTRY.size:
        return None
    layout, length = _ENTRY.unpack_from(entry)
    if layout != _LAYOUT:
        return None
    try:
        return length, portcullis_memory.ObjectRef.from_bytes(entry[_ENTRY.size :])
    except (ValueError, portcullis_memory.Error):
        return None
