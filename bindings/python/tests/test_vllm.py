"""The secondary tier for vLLM's KV offloading: made by vLLM's own factory if vLLM is installed, and else over stand-ins."""

from __future__ import annotations

import enum
import importlib
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import portcullis_memory
import pytest

numpy = pytest.importorskip("numpy")

CHUNKS = 40
CHUNK = 16 << 10
WAIT = 20.0


def stand_ins() -> dict[str, types.ModuleType]:
    """Returns modules with the few names of vLLM 0.33 that the tier uses."""

    class SecondaryTierManager:
        def __init__(self, spec: Any, view: memoryview, tier_type: str, detector: Any = None) -> None:
            assert view.strides is not None
            self.block_size_bytes, self.tier_type = view.strides[0], tier_type

    @dataclass
    class JobResult:
        job_id: int
        success: bool
        successful_keys: Any = None
        transfer_time: float | None = None
        transfer_bytes: int | None = None

    class FileMapper:
        @classmethod
        def from_offloading_spec(cls, root_dir: str, offloading_spec: Any, **_: Any) -> Any:
            return types.SimpleNamespace(base_path=f"/{offloading_spec.config.model.name}", rank=0)

    names: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.v1": {},
        "vllm.v1.kv_offload": {},
        "vllm.v1.kv_offload.tiering": {},
        "vllm.v1.kv_offload.tiering.base": {"SecondaryTierManager": SecondaryTierManager, "JobResult": JobResult},
        "vllm.v1.kv_offload.base": {
            "LookupResult": enum.Enum("LookupResult", "MISS HIT HIT_PENDING RETRY"),
            "Locality": enum.Enum("Locality", {"LOCAL": "LOCAL", "REMOTE": "REMOTE"}),
            "RequestOffloadingContext": type("RequestOffloadingContext", (), {}),
        },
        "vllm.v1.kv_offload.file_mapper": {"FileMapper": FileMapper},
    }
    modules = {}
    for name, content in names.items():
        modules[name] = types.ModuleType(name)
        vars(modules[name]).update(content)
    return modules


@pytest.fixture(scope="module")
def factory() -> Iterator[Any]:
    """Returns the function that makes a tier of a configuration."""
    try:
        tiers = importlib.import_module("vllm.v1.kv_offload.tiering.factory").SecondaryTierFactory
        yield tiers.create_secondary_tier
        return
    except ImportError:
        pass
    put = stand_ins()
    sys.modules.update(put)
    module = importlib.reload(importlib.import_module("portcullis_memory.vllm"))

    def create(config: dict[str, Any], view: memoryview, spec: Any) -> Any:
        rest = {name: value for name, value in config.items() if name not in ("type", "module_path")}
        return module.Tier(spec, view, config["type"], None, **rest)

    yield create
    for name in put:
        del sys.modules[name]
    importlib.reload(module)


def spec(model: str = "org/model-7B", tp_size: int = 1) -> Any:
    parallel = types.SimpleNamespace(
        rank=0, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False
    )
    config = types.SimpleNamespace(
        groups=(types.SimpleNamespace(tokens_per_block=16, layer_names=("layer.0",)),),
        model=types.SimpleNamespace(name=model, dtype="float16"),
        cache=types.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=parallel,
        replicated_layout=False,
        canonical_layout=False,
        kv_cache_layout=None,
    )
    return types.SimpleNamespace(config=config, blocks_per_chunk=1)


class Engine:
    """Calls a tier as vLLM's scheduler does."""

    def __init__(self, factory: Any, nodes: list[str], offloading_spec: Any = None, **options: Any) -> None:
        self.memory = numpy.zeros((CHUNKS, CHUNK), dtype=numpy.int8)
        config = {"type": "Tier", "module_path": "portcullis_memory.vllm", "nodes": nodes, "copies": 2, "arena": "4MiB"}
        config |= {"lease": 10, **options}
        self.tier = factory(config, memoryview(self.memory), offloading_spec or spec())
        self.request = types.SimpleNamespace(req_id="request 1", kv_transfer_params=None)
        self.jobs = 0
        self.tier.on_new_request(self.request)

    def fill(self, chunk: int, number: int) -> None:
        self.memory[chunk] = numpy.arange(CHUNK) * (2 * number + 1) >> 3 & 0x7F

    def look_up(self, keys: list[bytes]) -> list[bool]:
        end = time.monotonic() + WAIT
        while True:
            results = [self.tier.lookup(key, self.request).name for key in keys]
            self.tier.on_schedule_end(None)
            if "RETRY" not in results:
                return [result == "HIT" for result in results]
            assert time.monotonic() < end
            time.sleep(0.001)

    def begin(self, submit: Any, keys: list[bytes], chunks: list[int]) -> int:
        self.jobs += 1
        ids = numpy.array(chunks)
        submit(types.SimpleNamespace(job_id=self.jobs, keys=keys, chunk_ids=ids, req_context=self.request))
        return self.jobs

    def finished(self, job: int) -> Any:
        end = time.monotonic() + WAIT
        while True:
            for result in self.tier.get_finished_jobs():
                assert result.job_id == job
                return result
            assert time.monotonic() < end
            time.sleep(0.001)

    def store(self, keys: list[bytes], chunks: list[int]) -> Any:
        return self.finished(self.begin(self.tier.submit_store, keys, chunks))

    def load(self, keys: list[bytes], chunks: list[int]) -> Any:
        return self.finished(self.begin(self.tier.submit_load, keys, chunks))


def keys_of(numbers: range) -> list[bytes]:
    return [b"%032d" % number + (0).to_bytes(4, "big") for number in numbers]


@pytest.fixture
def engine(factory: Any, addresses: list[str]) -> Iterator[Engine]:
    engine = Engine(factory, addresses)
    yield engine
    engine.tier.shutdown()


def test_chunks_come_back_in_place(engine: Engine) -> None:
    keys = keys_of(range(20))
    for chunk in range(20):
        engine.fill(chunk, chunk)
    stored = engine.store(keys, list(range(20)))
    assert stored.success and stored.transfer_bytes == 20 * CHUNK
    assert engine.look_up([*keys, b"other key of the same length, 36 B."]) == [True] * 20 + [False]
    loaded = engine.load(keys[::-1], list(range(20, 40)))
    assert loaded.success and loaded.successful_keys is None
    assert (engine.memory[20:] == engine.memory[19::-1]).all()


def test_a_look_up_of_each_request_asks_anew(engine: Engine) -> None:
    (key,) = keys_of(range(1))
    assert engine.look_up([key]) == [False]
    assert engine.store([key], [0]).success
    assert engine.look_up([key]) == [False], "within a request the answer stays"
    engine.tier.on_request_finished(engine.request)
    assert engine.look_up([key]) == [True]


def test_a_lost_chunk_fails_alone_and_is_a_miss_afterwards(engine: Engine, addresses: list[str]) -> None:
    keys = keys_of(range(4))
    for chunk in range(4):
        engine.fill(chunk, chunk)
    assert engine.store(keys, list(range(4))).success
    assert engine.look_up(keys) == [True] * 4
    assert engine.load(keys, list(range(20, 24))).success  # Ends the leases of the look-up.
    with portcullis_memory.BlockStore(addresses, copies=2, table="vllm") as store:
        names = {block.key for blocks in store.list_blocks().values() for block in blocks}  # type: ignore[union-attr]
        assert [store.remove(name) for name in names if name.endswith(keys[2])] == [2]
    loaded = engine.load(keys, list(range(10, 14)))
    assert not loaded.success and list(loaded.successful_keys) == [keys[0], keys[1], keys[3]]
    assert (engine.memory[[10, 11, 13]] == engine.memory[[0, 1, 3]]).all()
    assert engine.look_up(keys) == [True, True, False, True]


def test_models_and_ranks_do_not_meet(engine: Engine, factory: Any, addresses: list[str]) -> None:
    keys = keys_of(range(2))
    assert engine.store(keys, [0, 1]).success
    other = Engine(factory, addresses, spec(model="org/other"))
    assert other.look_up(keys) == [False, False]
    other.tier.shutdown()


def test_transfers_are_drained_and_lost_nodes_raise_nothing(
    engine: Engine, three_nodes: list[portcullis_memory.Node]
) -> None:
    keys = keys_of(range(20))
    job = engine.begin(engine.tier.submit_store, keys, list(range(20)))
    engine.tier.drain_jobs()
    (result,) = engine.tier.get_finished_jobs()
    assert result.job_id == job and result.success
    three_nodes[1].stop()
    assert engine.look_up(keys) == [True] * 20
    assert engine.load(keys, list(range(20, 40))).success
    three_nodes[0].stop()
    three_nodes[2].stop()
    assert not engine.load(keys, list(range(20, 40))).success
    assert not engine.store(keys_of(range(30, 31)), [0]).success
    engine.tier.on_request_finished(engine.request)
    assert engine.look_up(keys) == [False] * 20
    assert all(node.lost is not None for node in engine.tier.nodes())


def test_options_that_make_no_sense(factory: Any, addresses: list[str]) -> None:
    wrong: list[tuple[list[str], dict[str, Any], type[Exception]]] = [
        (addresses, {"feathers": 2}, TypeError),
        (addresses, {"locality": "NEAR"}, ValueError),
        (["shm:/nowhere.sock"], {}, portcullis_memory.Error),
    ]
    for nodes, options, error in wrong:
        with pytest.raises(error):
            Engine(factory, nodes, **options)
