"""LMCache's second-level cache in the memory of Portcullis nodes.

:class:`Adapter` is a connector for LMCache's ``native_plugin`` adapter (MP mode, LMCache 0.5)::

    {"type": "native_plugin",
     "module_path": "portcullis_memory.lmcache",
     "class_name": "Adapter",
     "adapter_params": {"nodes": ["shm:/run/portcullis.sock", "udp:memory2.lan:7472"], "copies": 2},
     "max_capacity_gb": 48,
     "eviction": {"eviction_policy": "LRU"}}

Storage
    The blocks are in a :class:`portcullis_memory.BlockStore`: each is an object of its own on as many nodes as it has
    copies. A key leads to the block that was stored under it, or to nothing: a late reader never gets another block that
    lies at the same place now.

Hits
    After a hit the caller's buffer contains all bytes of the key's block, which were read under a live permission.
    Everything else is a miss: no such key, a block of another length, a block that has been freed, a lease that has
    ended, a read that the NIC refused, nodes that are gone. A miss never raises an exception: an inference engine can
    compute a block again, and cannot go on after a crash. After a miss the buffer may contain any bytes.

Locks
    LMCache locks the blocks that a lookup finds, and loads them afterwards. It calls a connector for the lookup and for
    the load, but not for the unlock. So a lookup takes a lease: a shared, read-only permission over each block that it
    finds. A lease ends with the load for which it was taken, after the time ``lease``, or if this adapter itself deletes
    the block. Until then this adapter can read the block, even if another client deletes it, and its memory is given to
    no other object.

This module needs neither LMCache nor torch. It needs Linux.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import portcullis_memory
from portcullis_memory.blocks import BlockStore

__all__ = ["Adapter"]

_log = logging.getLogger(__name__)

# First and longest pause before an adapter that has reached no node yet tries again, in seconds.
_RETRY_FIRST = 0.1
_RETRY_LONGEST = 5.0

# Time, in seconds, in which at most one warning of a kind is logged.
_COMPLAINT_EVERY = 10.0

# Interval, in seconds, in which the adapter compares which nodes are reached.
_COMPARED_EVERY = 1.0

_CLOSED = "the adapter is closed"


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that was submitted."""

    number: int
    kind: str
    keys: int


class Adapter:
    """A connector for LMCache's ``native_plugin`` adapter; see the module's description.

    All ``submit_`` methods return at once, with the number of the batch. Any thread may call them. Batches are carried out
    together. When a batch has ended, :meth:`event_fd` is readable and :meth:`drain_completions` returns the outcome. The
    adapter uses a batch's buffers until then, and never afterwards.

    Parameters
    ----------
    nodes
        The addresses of the nodes, such as ``["shm:/run/portcullis.sock", "udp:memory2.lan:7472"]``; or
        ``"name:bank/kv"`` for all nodes that are registered below this name in the directory.
    copies
        Number of nodes on which each block is stored. A block with N copies outlives N - 1 of them.
    table
        The name of the table of the blocks, on each node. Adapters of one tenant with the same nodes and the same name
        share their blocks. The first one makes the table.
    lease
        Seconds for which a lookup holds the blocks that it finds, at most the nodes' longest lifetime (10 s by
        default). A load finds the block if it begins within half of this time. 0: a lookup takes no leases, and a block
        that it has found may be gone when it is loaded.
    leases_max
        Largest number of blocks that are held on a node at a time. A lookup that finds more of them reports them without
        a lease.
    arena
        Memory for the transfers with each node, in bytes or as a text such as ``"64MiB"``.
    keep
        Time for which blocks stay on a node. ``True``: until the tenant's last client has left the node. A number: this
        many seconds after their last use, if the node allows it. ``math.inf``: until the node ends, if it allows that.
    tenant, certificates, within
        As of :class:`portcullis_memory.BlockStore`.

    Raises
    ------
    TypeError, ValueError, OverflowError, portcullis_memory.MachineError
        A parameter makes no sense, the certificates cannot be used, or no node allows such a ``keep`` or ``lease``. Nodes
        that cannot be reached raise nothing: everything is a miss until one can be reached.

    Notes
    -----
    A batch counts as stored if each of its blocks has a copy. A node that is full evicts blocks that have not been used
    for long, and never one that a lookup holds. LMCache does not learn of that, and gets a miss. So set
    ``max_capacity_gb`` and ``eviction`` in LMCache's configuration so that the copies of all blocks fit into the nodes.

    A key that has a block already keeps it, because LMCache's keys determine the tokens. A block of another length, or
    one that was freed, is replaced.
    """

    def __init__(
        self,
        nodes: str | list[str],
        *,
        copies: int = 1,
        table: str = "lmcache",
        lease: float = 2.0,
        leases_max: int = 4096,
        arena: int | str = "64MiB",
        keep: bool | float = True,
        tenant: str | None = None,
        certificates: str | None = None,
        within: float = 2.0,
    ) -> None:
        self._nodes = str(nodes)
        self._copies = copies
        self._open = partial(
            BlockStore,
            nodes,
            copies=copies,
            table=table,
            lease=lease,
            leases_max=leases_max,
            arena=arena,
            keep=keep,
            tenant=tenant,
            certificates=certificates,
            within=within,
        )
        self._process = os.getpid()
        # Guards the numbers, the operations under way, and the use of the descriptors.
        self._lock = threading.Lock()
        self._numbers = 0
        self._closing = threading.Event()
        self._store: BlockStore | None = None
        # The batches whose operations the store carries out, by the numbers of the operations.
        self._under_way: dict[int, _Batch] = {}
        self._done: list[tuple[int, bool, str, list[bool]]] = []

        # Only the adapter's thread uses these.
        self._unreached: set[str] = set()
        self._compared = 0.0
        self._complained: dict[str, float] = {}
        self._counts: Counter[str] = Counter()

        try:
            self._store = self._open()
        except portcullis_memory.Error as error:
            if _is_lasting(error):
                raise
            _log.warning("portcullis: no node yet: all blocks are misses until there is one: %s", error)
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Wakes the adapter's thread up when the adapter is closed.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._descriptors_open = True
        self._thread = threading.Thread(target=self._run, name="portcullis-lmcache", daemon=True)
        self._thread.start()

    # -- The interface for LMCache -------------------------------------------------------------------------------------

    def event_fd(self) -> int:
        """Returns the descriptor, an eventfd.

        It is readable while there are batches that have ended and that no call has drained.
        """
        return self._descriptor

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        """Loads the blocks of ``keys`` into ``buffers``, each of which has its block's length.

        The batch ends with a bool for each key. Raises TypeError or ValueError if the buffers cannot be used, RuntimeError
        in a child of fork, and nothing else.
        """
        return self._submit("get", keys, list(buffers))

    def submit_batch_set(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        """Stores ``buffers`` under ``keys``.

        Raises TypeError or ValueError if the buffers cannot be used, and nothing else.
        """
        return self._submit("set", keys, list(buffers))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Looks for ``keys`` and takes a lease of each block that it finds. The batch ends with a bool for each key."""
        return self._submit("exists", keys)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Removes ``keys`` and frees their blocks on all nodes that are reached.

        The batch ends with a bool for each key: whether no block is stored under it on any of these nodes now.

        This is true also for a key that had no block. Otherwise LMCache would for ever count a block that was lost with
        its node.
        """
        return self._submit("delete", keys)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """Returns the batches that have ended since the last call.

        Each is a tuple of number, success, error text, and a list with a bool for each key.
        """
        if os.getpid() != self._process:
            return []  # The descriptor is the parent's as well.
        with self._lock:
            if self._descriptors_open:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._descriptor)
            ended, self._done = self._done, []
        return ended

    def close(self) -> None:
        """Ends the adapter, when the batches under way have ended. No buffer is used after this returns.

        Stored blocks stay (see ``keep``). This method may be called again.
        """
        if os.getpid() != self._process:
            return  # The thread, the sessions and the holder of the lock belong to the parent.
        with self._lock:
            self._closing.set()
            if self._descriptors_open:
                os.eventfd_write(self._bell, 1)
        # The nodes may be in the middle of a transfer. If this returned before the transfer has ended, later writes
        # would go to memory that the caller believes to be its own again.
        while self._thread.is_alive():
            self._thread.join(10.0)
            if self._thread.is_alive():
                _log.warning("portcullis: still waiting for the transfers under way with %s", self._nodes)
        with self._lock:
            if self._descriptors_open:
                self._descriptors_open = False
                os.close(self._descriptor)
                os.close(self._bell)

    def __enter__(self) -> Adapter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_connected(self) -> bool:
        """Whether a node is reached. The adapter may not have noticed yet that a node is gone."""
        return any(node.lost is None for node in self.nodes())

    def nodes(self) -> list[portcullis_memory.NodeStatus]:
        """Returns the state of each node: see :meth:`portcullis_memory.BlockStore.status`.

        The list is empty if the adapter has reached no node yet, or is closed.
        """
        try:
            return [] if self._store is None else self._store.status()
        except portcullis_memory.CallerError:
            return []

    def statistics(self) -> dict[str, int]:
        """Returns the number of keys for each result, since the adapter began.

        The results are ``get.hit``, ``get.absent``, ``get.length`` (a block of another length), and ``get.`` with the name of
        an error of Portcullis (docs/errors.md); ``exists.hit`` and ``exists.absent``;
        ``set.stored`` (also for keys that had the block already), of which ``set.fewer-copies`` have fewer copies than
        wanted, and ``set.`` with the name of an error; ``delete.deleted``, ``delete.absent``, and ``delete.`` with the name of
        an error. Each may end in ``no-node``, until the first node is reached. :meth:`nodes` has the counts of each node, such
        as late reads and evicted blocks.
        """
        return dict(self._counts)

    # -- Submitting ----------------------------------------------------------------------------------------------------

    def _submit(self, kind: str, keys: Sequence[str], *buffers: list[Any]) -> int:
        if os.getpid() != self._process:
            raise RuntimeError("an Adapter serves the process that made it: make another one after a fork")
        names = list(keys)
        with self._lock:
            batch = _Batch(self._numbers, kind, len(names))
            error = self._begin(batch, names, buffers)
            # A batch that raises has no number.
            self._numbers += 1
        if error:
            self._end(batch, error, [False] * batch.keys)
        return batch.number

    def _begin(self, batch: _Batch, names: list[str], buffers: tuple[list[Any], ...]) -> str:
        """Hands a batch to the store. Returns the reason if that cannot be done now."""
        if self._closing.is_set():
            return _CLOSED
        store = self._store
        if store is None:
            self._counts[f"{batch.kind}.no-node"] += batch.keys
            return f"none of the nodes was reached yet: {self._nodes}"
        begin: dict[str, Callable[..., int]] = {
            "get": store.begin_get,
            "set": store.begin_put,
            "exists": store.begin_look_up,
            "delete": store.begin_remove,
        }
        self._under_way[begin[batch.kind](names, *buffers)] = batch
        return ""

    def _end(self, batch: _Batch, error: str, results: list[bool]) -> None:
        """Reports a batch's end. Its buffers belong to the caller from here on."""
        with self._lock:
            self._done.append((batch.number, not error, error, results))
            if self._descriptors_open:
                os.eventfd_write(self._descriptor, 1)

    # -- The adapter's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        store = self._store or self._reach_nodes()
        if store is None:
            return
        try:
            self._take_ends(store)
        except Exception:
            _log.exception("portcullis: the adapter ends by a mistake in it")
        finally:
            with self._lock:
                self._closing.set()
                left = list(self._under_way.values())
                self._under_way.clear()
            store.close()
            for batch in left:
                self._end(batch, "a mistake in the adapter", [False] * batch.keys)

    def _reach_nodes(self) -> BlockStore | None:
        """Opens the store, as soon as a node can be reached. None: the adapter is closing, or there is no use in trying."""
        pause = _RETRY_FIRST
        while not self._closing.wait(pause):
            try:
                store = self._open()
            except Exception as error:
                if not isinstance(error, portcullis_memory.Error) or _is_lasting(error):
                    _log.exception("portcullis: all blocks stay misses: the nodes will not be tried again: %s", self._nodes)
                    return None
                self._complain(error.name, "portcullis: no node yet: %s", error)
                pause = min(2 * pause, _RETRY_LONGEST)
                continue
            _log.info("portcullis: the cache is there: %s", self._nodes)
            with self._lock:
                self._store = store
            return store
        return None

    def _take_ends(self, store: BlockStore) -> None:
        """Reports the ends of batches, until the adapter is closed and the last batch has ended."""
        poll = select.poll()
        for descriptor in (store.fileno(), self._bell):
            poll.register(descriptor, select.POLLIN)
        is_over = False
        while not is_over:
            ready = {descriptor for descriptor, _ in poll.poll(_COMPARED_EVERY * 1000)}
            if self._bell in ready:
                os.eventfd_read(self._bell)
            with self._lock:
                ended = [(self._under_way.pop(number), end) for number, end in store.take(list(self._under_way))]
                is_over = self._closing.is_set() and not self._under_way
            for batch, end in ended:
                try:
                    error, results = self._outcome(batch.kind, end)
                except Exception:  # No caller may wait for ever, for this batch or for later ones.
                    _log.exception("portcullis: a batch failed by a mistake in the adapter")
                    error, results = "a mistake in the adapter", [False] * batch.keys
                self._end(batch, error, results)
            self._compare_nodes(store)

    def _outcome(self, kind: str, end: list[Any]) -> tuple[str, list[bool]]:
        """Counts the results of a batch's keys. Returns the error of the batch, and the result of each key."""
        counts = self._counts
        error = ""
        results = []
        if kind == "exists":
            results = [length is not None for length in end]
            counts["exists.hit"] += results.count(True)
            counts["exists.absent"] += results.count(False)
        elif kind == "get":
            for got, _, failure in end:
                results.append(got == "hit")
                if failure is None:
                    counts[f"get.{got}"] += 1
                else:
                    self._note(kind, failure)
        elif kind == "set":
            for copies, failure in end:
                results.append(copies > 0)
                if copies > 0:
                    counts["set.stored"] += 1
                    counts["set.fewer-copies"] += copies < self._copies
                else:
                    error = self._note(kind, failure)
        else:
            for copies, failure in end:
                results.append(failure is None)
                if failure is None:
                    counts["delete.deleted" if copies else "delete.absent"] += 1
                else:
                    error = self._note(kind, failure)
        return error, results

    def _note(self, kind: str, error: portcullis_memory.Error) -> str:
        """Counts an error of one key, and logs it unless the block or the permission has merely ended, or its node."""
        self._counts[f"{kind}.{error.name}"] += 1
        if not isinstance(error, (portcullis_memory.EndedError, portcullis_memory.NodeGoneError)):
            self._complain(error.name, "portcullis: %s: %s (%s)", kind, error, error.name)
        return f"{type(error).__name__}: {error}"

    def _compare_nodes(self, store: BlockStore) -> None:
        """Logs which nodes were lost or reached again since the last comparison."""
        now = time.monotonic()
        if now - self._compared < _COMPARED_EVERY:
            return
        self._compared = now
        nodes = store.status()
        names = {node.name for node in nodes}
        lost = {node.name: node.lost for node in nodes if node.lost is not None}
        rest = "all blocks are misses until one is back" if len(lost) == len(nodes) else "blocks that only it has are misses"
        for name in sorted(lost.keys() - self._unreached):
            _log.error("portcullis: lost the node %s (%s): %s", name, lost[name], rest)
        for name in sorted(self._unreached - lost.keys()):
            _log.info("portcullis: the node %s %s", name, "is back" if name in names else "is named no more")
        self._unreached = set(lost)

    def _complain(self, about: str, text: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._complained.get(about, -math.inf) >= _COMPLAINT_EVERY:
            self._complained[about] = now
            _log.warning(text, *arguments)


def _is_lasting(error: portcullis_memory.Error) -> bool:
    """Whether another attempt would fail as well: the parameters make no sense, or do not fit the nodes."""
    return isinstance(error, portcullis_memory.CallerError) or error.name.startswith("identity-")
