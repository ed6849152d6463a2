"""LMCache's second-level cache in a Portcullis node's memory.

:class:`Adapter` is a connector for LMCache's ``native_plugin`` adapter (MP mode, LMCache 0.5)::

    {"type": "native_plugin",
     "module_path": "portcullis_memory.lmcache",
     "class_name": "Adapter",
     "adapter_params": {"address": "shm:/run/portcullis.sock"},
     "max_capacity_gb": 48,
     "eviction": {"eviction_policy": "LRU"}}

Storage
    Each block is an object of its own. A hash table of the tenant has, for each key, the block's length and the
    object's reference. A reference names one object for ever. So a key leads to the block that was stored under it, or
    to nothing: a late reader never gets another block that lies at the same place now.

Hits
    After a hit the caller's buffer contains all bytes of the key's block, which were read under a live permission.
    Everything else is a miss: no such key, a block of another length, a block that has been freed, a lease that has
    ended, a read that the NIC refused, a node that is gone. A miss never raises an exception: an inference engine can
    compute a block again, and cannot go on after a crash. After a miss the buffer may contain a part of the block.

Locks
    LMCache locks the blocks that a lookup finds, and loads them afterwards. It calls a connector for the lookup and for
    the load, but not for the unlock. So a lookup takes a lease: a shared, read-only permission over each block that it
    finds. A lease ends with the load for which it was taken, or after the time ``lease``. Until then this adapter can
    read the block, even if a client deletes it, and its memory is given to no other object.

This module needs neither LMCache nor torch. It needs Linux.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import portcullis_memory
from portcullis_memory._blocks import SESSION_OVER, Blocks, Options, Stored

__all__ = ["Adapter"]

_log = logging.getLogger(__name__)

# Number of keys of one step. Other batches get their turn between two steps. Keys that are stored or deleted are
# changed one after the other, each by several round trips.
_READ_STEP_KEYS = 128
_CHANGE_STEP_KEYS = 32

# First and longest pause before an adapter looks for a lost node again, in seconds.
_RETRY_FIRST = 0.1
_RETRY_LONGEST = 5.0

# Time, in seconds, in which at most one warning of a kind is logged.
_COMPLAINT_EVERY = 10.0

_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])(?:iB)?|B)?", re.IGNORECASE)


@dataclass(slots=True)
class _Work:
    """A batch that was submitted and has not ended. Until it ends it uses the caller's ``buffers``."""

    number: int
    kind: str
    keys: list[bytes]
    buffers: list[memoryview]
    results: list[bool] = field(init=False)
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.results = [False] * len(self.keys)


class Adapter:
    """A connector for LMCache's ``native_plugin`` adapter; see the module's description.

    All ``submit_`` methods return at once, with the number of the batch. Any thread may call them. A thread of the
    adapter carries out the batches. Lookups and loads that wait are carried out together, and take turns with the steps
    of stores. When a batch has ended, :meth:`event_fd` is readable and :meth:`drain_completions` returns the outcome.
    The adapter uses a batch's buffers until then, and never afterwards.

    Parameters
    ----------
    address
        The node: ``"shm:/run/portcullis.sock"``, ``"udp:memory1.lan:7472"``, ``"rdma:..."``.
    table
        The name of the table of the blocks. Adapters of one tenant with the same address and the same name share their
        blocks. The first one makes the table.
    lease
        Seconds for which a lookup holds the blocks that it finds, at most the node's longest lifetime (10 s by
        default). A load uses a lease only while half a second of it is left, or half of it if that is less. 0: a lookup
        takes no leases, and a block that it has found may be gone when it is loaded.
    leases_max
        Largest number of blocks that are held at a time. A lookup that finds more of them reports them without a lease.
    arena
        The size of the session's memory for transfers, in bytes or as a text such as ``"64MiB"``.
    keep
        Time for which blocks stay. ``True``: until the tenant's last client has left. A number: this many seconds
        longer. ``math.inf``: until the node ends, if the node allows it.
    session
        Further arguments of :func:`portcullis_memory.connect`, for example certificates.

    Raises
    ------
    TypeError, ValueError
        A parameter makes no sense.
    portcullis_memory.CallerError
        The address or another argument makes no sense to Portcullis, or the node does not allow such a ``keep`` or
        ``lease``. A node that cannot be reached raises nothing: everything is a miss until it can be reached.

    Notes
    -----
    A batch is stored as a whole or not at all, because LMCache counts whole batches. If the node or the quota is full,
    the adapter evicts nothing, and the batch is not stored. So set ``max_capacity_gb`` and ``eviction`` in LMCache's
    configuration, below the tenant's quota.

    A key that has a block already keeps it, because LMCache's keys determine the tokens. A block of another length, or
    one that was freed, is replaced.
    """

    def __init__(
        self,
        address: str,
        *,
        table: str = "lmcache",
        lease: float = 2.0,
        leases_max: int = 4096,
        arena: int | str = "64MiB",
        keep: bool | float = True,
        session: dict[str, Any] | None = None,
    ) -> None:
        if session is not None and not isinstance(session, dict):
            raise TypeError(f"session must be a dict of arguments of portcullis_memory.connect, not {session!r}")
        self._options = Options(
            address=_text("address", address),
            table=_text("table", table),
            lease=_number("lease", lease, least=0.0, most=86_400.0),
            leases_max=int(_number("leases_max", leases_max, least=0, most=1 << 20, whole=True)),
            arena=arena,
            keep=keep if keep is True else _number("keep", keep, least=0.001, most=math.inf),
            session=dict(session or {}),
        )
        self._address = address
        # Half of the arena, so that the transfers of a step and the rest of the step before have room together.
        self._step_bytes = max(1, _size("arena", arena) // 2)

        self._process = os.getpid()
        self._submitting = threading.Lock()  # Guards the next number, and rejects batches after the end.
        self._numbers = 0
        self._closing = threading.Event()
        self._incoming: queue.SimpleQueue[_Work | Blocks | None] = queue.SimpleQueue()
        self._done: deque[tuple[int, bool, str, list[bool]]] = deque()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._descriptor_open = True

        # Only the worker uses these.
        self._blocks: Blocks | None = None
        self._reads: deque[_Work] = deque()
        self._changes: deque[_Work] = deque()
        # The error that ended the session, until the end of the step that met it.
        self._lost: portcullis_memory.Error | None = None
        self._complained: dict[str, float] = {}
        self._counts: Counter[str] = Counter()

        try:
            self._blocks = self._connect()
        except portcullis_memory.CallerError:
            os.close(self._descriptor)  # The parameters do not fit the node: another attempt would not help.
            raise
        except portcullis_memory.Error as error:
            _log.warning("portcullis: no node at %s yet (%s): all blocks are misses until there is one", address, error)
            self._look_for_node()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._worker = threading.Thread(target=self._work, name="portcullis-lmcache", daemon=True)
        self._worker.start()

    # -- The interface for LMCache -------------------------------------------------------------------------------------

    def event_fd(self) -> int:
        """Returns the descriptor, an eventfd.

        It is readable while there are batches that have ended and that no call has drained.
        """
        return self._descriptor

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        """Loads the blocks of ``keys`` into ``buffers``, each of which has its block's length.

        The batch ends with a bool for each key. Raises TypeError or ValueError if the buffers cannot be used, and
        nothing else.

        Raises TypeError or ValueError if the buffers cannot be used, and nothing else.
        """
        return self._submit("get", keys, _buffers(keys, buffers, written=True))

    def submit_batch_set(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        """Stores ``buffers`` under ``keys``: all of them, or none.

        Raises TypeError or ValueError if the buffers cannot be used, and nothing else.
        """
        return self._submit("set", keys, _buffers(keys, buffers, written=False))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Looks for ``keys`` and takes a lease of each block that it finds. The batch ends with a bool for each key."""
        return self._submit("exists", keys, [])

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Removes ``keys`` and frees their blocks.

        The batch ends with a bool for each key: whether no block is stored under it now.

        This is true also for a key that had no block. Otherwise LMCache would for ever count a block that was lost with
        its node.
        """
        return self._submit("delete", keys, [])

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """Returns the batches that have ended since the last call.

        Each is a tuple of number, success, error text, and a list with a bool for each key.
        """
        if self._descriptor_open:
            try:
                os.eventfd_read(self._descriptor)
            except BlockingIOError:
                pass
        ended = []
        while self._done:
            ended.append(self._done.popleft())
        return ended

    def close(self) -> None:
        """Ends the adapter. Batches that have not ended fail. No buffer is used after this returns.

        Stored blocks stay (see ``keep``). This method may be called again.
        """
        if os.getpid() != self._process:
            return  # The thread, the session and the holder of the lock belong to the parent.
        with self._submitting:
            self._closing.set()
        self._incoming.put(None)
        # The worker may be in the middle of a transfer. If this returned before the transfer has ended, later writes
        # would go to memory that the caller believes to be its own again.
        while self._worker.is_alive():
            self._worker.join(10.0)
            if self._worker.is_alive():
                _log.warning("portcullis: still waiting for the transfers under way at %s", self._address)
        with self._submitting:
            if self._descriptor_open:
                self._descriptor_open = False
                os.close(self._descriptor)

    def __enter__(self) -> Adapter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_connected(self) -> bool:
        """Whether there is a session with the node. The adapter may not have noticed yet that the node is gone."""
        return self._blocks is not None

    def statistics(self) -> dict[str, int]:
        """Returns the number of keys for each result, since the adapter began.

        The results are ``get.hit``, ``get.absent``, ``get.length`` (a block of another length), ``get.no-node``, and
        ``get.`` with the name of an error of Portcullis (docs/errors.md). So there are separate counts of blocks that
        were freed (``get.object-gone``), reads that came too late (``get.expired``) and blocks that were lost with the
        node. There are the same results with ``exists.``, ``set.`` and ``delete.``.
        """
        return dict(self._counts)

    # -- Submitting ----------------------------------------------------------------------------------------------------

    def _submit(self, kind: str, keys: Sequence[str], buffers: list[memoryview]) -> int:
        if os.getpid() != self._process:
            raise RuntimeError("an Adapter serves the process that made it: make another one after a fork")
        names = [key.encode() if isinstance(key, str) else bytes(key) for key in keys]
        with self._submitting:
            number = self._numbers
            self._numbers += 1
            work = _Work(number, kind, names, buffers)
            if not self._closing.is_set():
                self._incoming.put(work)
                return number
        self._end(work, "the adapter is closed")
        return number

    def _end(self, work: _Work, error: str = "") -> None:
        """Reports a batch's end. Its buffers belong to the caller from here on."""
        if work.has_ended:
            return
        work.has_ended = True
        work.buffers = []
        self._done.append((work.number, not error, error, work.results))
        with self._submitting:
            if self._descriptor_open:
                os.eventfd_write(self._descriptor, 1)

    # -- The worker ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        change: Generator[None, None, None] | None = None
        try:
            while self._take_in(wait=change is None and not self._changes):
                works, self._reads = self._reads, deque()
                try:
                    self._serve(works)
                    if change is None and self._changes:
                        change = self._change(self._changes.popleft())
                    if change is not None and next(change, self) is self:
                        change = None
                except Exception:  # No caller may wait for ever, for these batches or for later ones.
                    _log.exception("portcullis: batches failed by a mistake in the adapter")
                    change = None
                finally:
                    for work in works:
                        self._end(work, "a mistake in the adapter")
        finally:
            if change is not None:
                change.close()  # Ends the batch, and removes the part of it that was stored.
            while not self._incoming.empty():  # No thread adds to it any more.
                self._take(self._incoming.get())
            for work in (*self._reads, *self._changes):
                self._end(work, "the adapter is closed")
            blocks, self._blocks = self._blocks, None
            if blocks is not None:
                blocks.close()

    def _take_in(self, wait: bool) -> bool:
        """Takes the batches that were submitted. Returns False if the adapter is closing."""
        within = None
        if self._blocks is not None:
            self._blocks.drop_ended_leases()
            # While there are leases, the worker wakes up to drop the ones that have ended.
            within = self._options.lease if self._blocks.has_leases else None
        try:
            item = self._incoming.get(wait, within)
            while True:
                self._take(item)
                item = self._incoming.get_nowait()
        except queue.Empty:
            return not self._closing.is_set()

    def _take(self, item: _Work | Blocks | None) -> None:
        if isinstance(item, Blocks):
            self._blocks, self._lost = item, None
        elif item is not None:
            (self._reads if item.kind in ("get", "exists") else self._changes).append(item)

    def _serve(self, works: Iterable[_Work]) -> None:
        """Carries out lookups and loads, all of them together."""
        for kind in ("exists", "get"):
            same = [work for work in works if work.kind == kind]
            entries = [(work, index) for work in same for index in range(len(work.keys))]
            errors = {work.number: "" for work in same}
            left = {work.number: len(work.keys) for work in same}
            for work in same:
                if not work.keys:
                    self._end(work)
            for step in self._steps(entries, _READ_STEP_KEYS, lambda e: len(e[0].buffers[e[1]]) if e[0].buffers else 0):
                if self._closing.is_set():
                    error = "the adapter is closed"
                else:
                    error = self._guarded(kind, len(step), partial(self._serve_step, kind=kind, step=step))
                for work, _ in step:
                    errors[work.number] = errors[work.number] or error
                    left[work.number] -= 1
                    if not left[work.number]:
                        self._end(work, errors[work.number])

    def _serve_step(self, blocks: Blocks, kind: str, step: list[tuple[_Work, int]]) -> None:
        keys = [work.keys[index] for work, index in step]
        if kind == "get":
            results = blocks.load(keys, [work.buffers[index] for work, index in step])
        else:
            results = blocks.look_up(keys)
        for (work, index), result in zip(step, results):
            work.results[index] = result

    def _change(self, work: _Work) -> Generator[None, None, None]:
        """Carries out one batch that stores or deletes. Other batches get their turn whenever it yields."""
        error = "the adapter is closed"
        try:
            error = yield from (self._store(work) if work.kind == "set" else self._delete(work))
        finally:
            self._end(work, error)

    def _store(self, work: _Work) -> Generator[None, None, str]:
        stored: list[Stored] = []
        is_stored = False
        try:
            entries = list(zip(work.keys, work.buffers))
            for step in self._steps(entries, _CHANGE_STEP_KEYS, lambda entry: len(entry[1])):
                error = self._guarded("set", len(step), partial(self._store_step, step=step, stored=stored))
                if error:
                    return error
                yield
            is_stored = True
            work.results = [True] * len(work.keys)
            return ""
        finally:
            # LMCache deletes only blocks that were reported as stored. Other blocks would fill the node for good.
            if stored and not is_stored:
                self._guarded("set", len(stored), lambda blocks: blocks.take_back(stored))

    def _store_step(self, blocks: Blocks, step: list[tuple[bytes, memoryview]], stored: list[Stored]) -> None:
        blocks.store([key for key, _ in step], [buffer for _, buffer in step], stored)

    def _delete(self, work: _Work) -> Generator[None, None, str]:
        for step in self._steps(range(len(work.keys)), _CHANGE_STEP_KEYS, lambda _: 0):
            error = self._guarded("delete", len(step), partial(self._delete_step, work=work, step=step))
            if error:
                return error
            yield
        return ""

    def _delete_step(self, blocks: Blocks, work: _Work, step: list[int]) -> None:
        blocks.delete([work.keys[index] for index in step])
        for index in step:
            work.results[index] = True

    def _guarded(self, kind: str, keys: int, act: Callable[[Blocks], None]) -> str:
        """Carries out one step.

        Returns the text of an error that concerns all of it: no such exception leaves this method.
        """
        if self._blocks is None:
            self._counts[f"{kind}.no-node"] += keys
            return f"no node at {self._address}"
        try:
            act(self._blocks)
            return ""
        except portcullis_memory.Error as error:
            self._note(kind, error)
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # A bug here must not cost the engine its cache.
            self._complain("mistake", "portcullis: a batch failed by a mistake in the adapter: %r", error, trace=True)
            return f"{type(error).__name__}: {error}"
        finally:
            self._leave_if_lost()

    def _steps(self, entries: Sequence[Any], keys: int, size: Callable[[Any], int]) -> Iterator[list[Any]]:
        """Cuts work into steps that fit into the arena, and that do not keep other batches waiting for long."""
        step: list[Any] = []
        step_bytes = 0
        for entry in entries:
            if step and (len(step) == keys or step_bytes + size(entry) > self._step_bytes):
                yield step
                step, step_bytes = [], 0
            step.append(entry)
            step_bytes += size(entry)
        if step:
            yield step

    # -- The node ------------------------------------------------------------------------------------------------------

    def _connect(self) -> Blocks:
        return Blocks(self._options, self._counts, self._note)

    def _look_for_node(self) -> None:
        """Looks for the node on a thread of its own: a node that does not answer must not hold up the misses."""
        threading.Thread(target=self._looking, name="portcullis-lmcache-connect", daemon=True).start()

    def _looking(self) -> None:
        began = time.monotonic()
        pause = _RETRY_FIRST
        said = ""
        while not self._closing.wait(pause):
            try:
                blocks = self._connect()
            except portcullis_memory.Error as error:
                if error.name != said:
                    said = error.name
                    _log.info("portcullis: looking for a node at %s: %s", self._address, error)
                pause = min(2 * pause, _RETRY_LONGEST)
                continue
            except Exception:
                _log.exception("portcullis: looking for a node at %s failed, and will not be tried again", self._address)
                return
            with self._submitting:
                if not self._closing.is_set():
                    _log.info("portcullis: a node at %s after %.1f s", self._address, time.monotonic() - began)
                    self._incoming.put(blocks)
                    return
            blocks.close()

    def _note(self, kind: str, error: portcullis_memory.Error) -> None:
        """Counts an error of one key or one step.

        Logs it, unless the session is over, or the block or the permission has merely ended.
        """
        self._counts[f"{kind}.{error.name}"] += 1
        if error.name in SESSION_OVER:
            self._lost = error
        elif not isinstance(error, portcullis_memory.EndedError):
            self._complain(error.name, "portcullis: %s at %s: %s (%s)", kind, self._address, error, error.name)

    def _leave_if_lost(self) -> None:
        """Gives up the session if it is over, and begins to look for the node."""
        error, self._lost = self._lost, None
        if error is None or self._blocks is None:
            return
        blocks, self._blocks = self._blocks, None
        blocks.close()
        _log.error("portcullis: lost the node at %s (%s): all blocks are misses until it is back", self._address, error)
        self._look_for_node()

    def _complain(self, about: str, text: str, *arguments: object, trace: bool = False) -> None:
        now = time.monotonic()
        if now - self._complained.get(about, -math.inf) >= _COMPLAINT_EVERY:
            self._complained[about] = now
            _log.warning(text, *arguments, exc_info=trace)


def _buffers(keys: Sequence[str], buffers: Sequence[Any], written: bool) -> list[memoryview]:
    """Returns the buffers as contiguous bytes, each with the number of bytes as its length."""
    if len(keys) != len(buffers):
        raise ValueError(f"{len(keys)} keys and {len(buffers)} buffers")
    views = []
    for buffer in buffers:
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise ValueError("a buffer must be in one piece (C-contiguous)")
        if written and view.readonly:
            raise ValueError("a buffer to load into must be writable")
        if view.itemsize != 1 or view.ndim != 1:
            view = view.cast("B")
        views.append(view)
    return views


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, not {value!r}")
    if not value:
        raise ValueError(f"{name} must not be empty")
    return value


def _number(name: str, value: object, *, least: float, most: float, whole: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise TypeError(f"{name} must be a {'whole ' if whole else ''}number, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be between {least:g} and {most:g}, not {value!r}")
    return value


def _size(name: str, value: object) -> int:
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f'{name} must be a number of bytes or a size such as "64MiB", not {value!r}')
        value = int(match[1]) << (" KMGT".index((match[2] or " ").upper()) * 10)
    return int(_number(name, value, least=1, most=1 << 62, whole=True))
