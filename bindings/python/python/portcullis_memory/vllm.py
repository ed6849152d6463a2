"""A secondary tier of vLLM's KV offloading in the memory of Portcullis nodes.

:class:`Tier` is loaded by vLLM's ``TieringOffloadingSpec`` (vLLM 0.33)::

    --kv-transfer-config '{
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 10737418240,
            "secondary_tiers": [{
                "type": "Tier",
                "module_path": "portcullis_memory.vllm",
                "nodes": ["shm:/run/portcullis.sock", "udp:memory2.lan:7472"],
                "copies": 2}]}}'

Storage
    The chunks are in a :class:`portcullis_memory.BlockStore`. They are moved between vLLM's CPU tier and the nodes in place.
    Their keys contain vLLM's own name for the model, its layout and its ranks (``FileMapper``). vLLM's hashes are the same in
    all its processes only if all have the same ``PYTHONHASHSEED``.

Hits
    A look-up takes a lease of each chunk that it finds. A load that finds a chunk gone, or comes too late, is reported as
    failed for that chunk, and vLLM computes it again. No method raises an exception because of a node.

Calls of vLLM's scheduler never wait, apart from ``drain_jobs`` and ``shutdown``. This module can be imported without vLLM. It
needs Linux.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from portcullis_memory.blocks import BlockStore, NodeStatus

__all__ = ["Tier"]

_base: Any
_Manager: Any
try:
    _base = importlib.import_module("vllm.v1.kv_offload.tiering.base")
    _Manager = _base.SecondaryTierManager
except ImportError:
    # vLLM checks the base class, and is there when it does.
    _Manager = object


@dataclass(slots=True)
class _Look:
    """A key that requests have asked for."""

    #: Whether the key was found. None: there is no answer yet.
    found: bool | None = None
    #: The requests that have asked.
    requests: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Job:
    """A transfer under way."""

    number: int
    keys: list[bytes]
    is_load: bool
    began: float


class Tier(_Manager):  # type: ignore[misc]
    """A secondary tier; see the module's description.

    vLLM gives the first four arguments. The others are those of :class:`portcullis_memory.BlockStore`, and ``locality`` is that
    of vLLM's own tiers, ``"LOCAL"`` or ``"REMOTE"``.

    Raises TypeError if an option is unknown, and :class:`portcullis_memory.Error` if no node can be reached when vLLM starts.
    Nodes that are lost later are tried again in the background.
    """

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        nodes: str | list[str],
        locality: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        types = importlib.import_module("vllm.v1.kv_offload.base")
        mapper = importlib.import_module("vllm.v1.kv_offload.file_mapper").FileMapper.from_offloading_spec(
            root_dir="",
            offloading_spec=offloading_spec,
            blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=True,
        )
        self._types = types
        self.locality = None if locality is None else types.Locality(locality)
        self._prefix = f"{mapper.base_path}_r{mapper.rank}/".encode()
        self._bytes = primary_kv_view.cast("B")
        self._store = BlockStore(nodes, **{"table": "vllm", "arena": "64MiB", **options})
        self._looks: dict[bytes, _Look] = {}
        # The keys that each request has asked for.
        self._asked_by: dict[str, set[bytes]] = {}
        # Keys that the next look-up asks for.
        self._asked: list[bytes] = []
        # The keys of look-ups, and the transfers, by the numbers of the store's operations.
        self._under_way: dict[int, list[bytes] | _Job] = {}
        self._finished: list[Any] = []

    # -- Looks ---------------------------------------------------------------------------------------------------------

    def on_new_request(self, req_context: Any) -> Any:
        """Returns vLLM's default for requests: chunks are stored as they are computed."""
        return self._types.RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """Returns whether a chunk is stored, or RETRY if the nodes have not answered yet."""
        self._take_ends()
        look = self._looks.get(key)
        if look is None:
            look = self._looks[key] = _Look()
            self._asked.append(key)
        look.requests.add(req_context.req_id)
        self._asked_by.setdefault(req_context.req_id, set()).add(key)
        results = self._types.LookupResult
        if look.found is None:
            return results.RETRY
        return results.HIT if look.found else results.MISS

    def on_schedule_end(self, context: Any) -> None:
        """Begins the look-up of the keys of this step, all together."""
        if self._asked:
            keys, self._asked = self._asked, []
            self._under_way[self._store.begin_look_up(self._names(keys))] = keys

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets the look-ups of a request."""
        for key in self._asked_by.pop(req_context.req_id, ()):
            look = self._looks[key]
            look.requests.discard(req_context.req_id)
            # A look-up that has no answer yet is forgotten with its answer.
            if not look.requests and look.found is not None:
                del self._looks[key]

    # -- Transfers -----------------------------------------------------------------------------------------------------

    def submit_store(self, job_metadata: Any) -> None:
        """Begins to store chunks of the CPU tier."""
        self._begin(job_metadata, is_load=False)

    def submit_load(self, job_metadata: Any) -> None:
        """Begins to load chunks into the CPU tier."""
        self._begin(job_metadata, is_load=True)

    def _begin(self, job: Any, is_load: bool) -> None:
        keys, length = list(job.keys), self.block_size_bytes
        chunks = [self._bytes[int(chunk) * length : (int(chunk) + 1) * length] for chunk in job.chunk_ids]
        begin = self._store.begin_get if is_load else self._store.begin_put
        number = begin(self._names(keys), chunks)
        self._under_way[number] = _Job(job.job_id, keys, is_load, time.monotonic())

    def get_finished_jobs(self) -> Iterable[Any]:
        """Returns the transfers that have ended since the last call."""
        self._take_ends()
        finished, self._finished = self._finished, []
        return finished

    def drain_jobs(self) -> None:
        """Waits until all transfers have ended."""
        for number, work in list(self._under_way.items()):
            if isinstance(work, _Job):
                end = self._store.wait(number)
                del self._under_way[number]
                self._end_job(work, end)

    # -- The rest ------------------------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeStatus]:
        """Returns the state and the counts of each node."""
        return self._store.status()

    def shutdown(self) -> None:
        """Closes the store, when the transfers under way have ended. The chunks stay."""
        if not self._store.closed:
            self.drain_jobs()
            self._store.close()

    def _names(self, keys: Collection[bytes]) -> list[bytes | str]:
        return [self._prefix + key for key in keys]

    def _take_ends(self) -> None:
        if not self._under_way:
            return
        for number, end in self._store.take(list(self._under_way)):
            work = self._under_way.pop(number)
            if isinstance(work, _Job):
                self._end_job(work, end)
            else:
                self._end_look(work, end)

    def _end_look(self, keys: list[bytes], end: list[Any]) -> None:
        for key, length in zip(keys, end):
            look = self._looks[key]
            look.found = length == self.block_size_bytes
            if not look.requests:
                del self._looks[key]

    def _end_job(self, job: _Job, end: list[Any]) -> None:
        if job.is_load:
            whole = [key for key, (got, _, _) in zip(job.keys, end) if got == "hit"]
            # A request that asks again must get a miss, and not this load once more.
            for key in set(job.keys) - set(whole):
                look = self._looks.get(key)
                if look is not None and look.found is not None:
                    look.found = False
        else:
            whole = [key for key, (copies, _) in zip(job.keys, end) if copies > 0]
        result = _base.JobResult(
            job_id=job.number,
            success=len(whole) == len(job.keys),
            successful_keys=whole if job.is_load and 0 < len(whole) < len(job.keys) else None,
            transfer_time=time.monotonic() - job.began,
            transfer_bytes=len(whole) * self.block_size_bytes,
        )
        self._finished.append(result)
