"""The backend for SGLang's hierarchical cache, over a small host pool, and under SGLang's abstract class if it is installed."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import portcullis_memory
import pytest
from portcullis_memory.sglang import HiCache

numpy = pytest.importorskip("numpy")

PAGE = 4  # Tokens.
PART = 8 << 10  # Bytes of the keys, and of the values, of a page.


class Pool:
    """The host memory of a model with keys and values, in the layout page_first."""

    page_size = PAGE
    layout = "page_first"

    def __init__(self, pages: int) -> None:
        self.memory = numpy.zeros((pages, 2, PART), dtype=numpy.uint8)

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        assert len(indices) % PAGE == 0
        pages = [index // PAGE for index in indices.tolist()[::PAGE]]
        addresses = [self.memory[page, part].ctypes.data for page in pages for part in range(2)]
        return addresses, [PART] * len(addresses)

    def fill(self, page: int, number: int) -> None:
        self.memory[page] = numpy.arange(2 * PART, dtype=numpy.uint32).reshape(2, PART) * (2 * number + 1) >> 3 & 0xFF


def places(*pages: int) -> Any:
    return numpy.array([page * PAGE + token for page in pages for token in range(PAGE)])


def config(nodes: list[str], interface_v1: int = 1, **changed: Any) -> Any:
    extra = {"interface_v1": interface_v1, "portcullis": {"nodes": nodes, "copies": 2, "arena": "4MiB", "lease": 10}}
    plain = {
        "tp_rank": 0,
        "tp_size": 2,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "model_name": "org/model-7B",
        "extra_config": extra,
    }
    return types.SimpleNamespace(**{**plain, **changed})


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for torch, of which the backend needs one function."""
    if "torch" not in sys.modules:
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(arange=numpy.arange))


@pytest.fixture
def cache(addresses: list[str], torch: None) -> Iterator[HiCache]:
    cache = HiCache(config(addresses), {})
    yield cache
    cache.close()


@pytest.fixture
def pool(cache: HiCache) -> Pool:
    pool = Pool(40)
    cache.register_mem_pool_host(pool)
    return pool


def test_pages_come_back_in_place(cache: HiCache, pool: Pool) -> None:
    keys = [f"hash {number}" for number in range(20)]
    for number in range(20):
        pool.fill(number, number)
    assert cache.batch_set_v1(keys, places(*range(20))) == [True] * 20
    assert cache.batch_exists([*keys, "other"]) == 20
    assert cache.batch_exists(["other", *keys]) == 0
    assert cache.exists("hash 7") and not cache.exists("hash 70")
    assert cache.batch_get_v1([*keys[::-1], "other"], places(*range(20, 40), 0)) == [True] * 20 + [False]
    assert (pool.memory[20:] == pool.memory[19::-1])[:19].all()


def test_a_page_without_one_of_its_parts_is_a_miss(cache: HiCache, pool: Pool, addresses: list[str]) -> None:
    pool.fill(0, 1)
    assert cache.batch_set_v1(["page", "whole"], places(0, 0)) == [True, True]
    with portcullis_memory.BlockStore(addresses, copies=2, table="sglang") as store:
        names = {block.key for blocks in store.list_blocks().values() for block in blocks}  # type: ignore[union-attr]
        (value,) = (name for name in names if name.endswith(b"page#1"))
        assert store.remove(value) == 2
    assert cache.batch_exists(["whole", "page"]) == 1
    assert cache.batch_get_v1(["whole", "page"], places(1, 2)) == [True, False]


def test_ranks_and_models_do_not_meet(cache: HiCache, pool: Pool, addresses: list[str]) -> None:
    pool.fill(0, 1)
    assert cache.batch_set_v1(["page"], places(0)) == [True]
    for changed in ({"tp_rank": 1}, {"model_name": "org/other"}, {"pp_size": 2}, {"attn_cp_size": 2}):
        other = HiCache(config(addresses, **changed), {})
        other.register_mem_pool_host(pool)
        assert not other.exists("page"), changed
        assert other.clear()
        other.close()
    assert cache.exists("page")
    assert cache.clear()
    assert not cache.exists("page")


def test_whole_pages_come_back_without_the_first_interface(addresses: list[str]) -> None:
    cache = HiCache(config(addresses, interface_v1=0), {})
    pages = [numpy.full(PART, number, dtype=numpy.float32) for number in range(6)]
    keys = [f"hash {number}" for number in range(6)]
    assert cache.set(keys[0], pages[0]) and cache.batch_set(keys[1:], pages[1:])
    targets = [numpy.zeros_like(page) for page in pages]
    assert cache.batch_exists([*keys, "other"]) == 6
    loaded = cache.batch_get(keys, targets)
    assert all(found is target for found, target in zip(loaded, targets))
    assert all((target == page).all() for target, page in zip(targets, pages))
    assert cache.get("other", targets[0]) is None
    cache.close()


def test_a_lost_node_costs_no_page_and_lost_nodes_raise_nothing(
    cache: HiCache, pool: Pool, three_nodes: list[portcullis_memory.Node]
) -> None:
    keys = [f"hash {number}" for number in range(20)]
    for number in range(20):
        pool.fill(number, number)
    assert cache.batch_set_v1(keys, places(*range(20))) == [True] * 20
    three_nodes[1].stop()
    assert cache.batch_get_v1(keys, places(*range(20, 40))) == [True] * 20
    assert (pool.memory[20:] == pool.memory[:20]).all()
    three_nodes[0].stop()
    three_nodes[2].stop()
    assert cache.batch_get_v1(keys, places(*range(20, 40))) == [False] * 20
    assert cache.batch_exists(keys) == 0
    assert cache.batch_set_v1(["late"], places(0)) == [False]
    assert all(node.lost is not None for node in cache.nodes())


def test_options_that_make_no_sense(addresses: list[str]) -> None:
    wrong: list[tuple[Any, type[Exception]]] = [
        (None, KeyError),
        ({"interface_v1": 1}, KeyError),
        ({"portcullis": {"copies": 2}}, KeyError),
        ({"portcullis": {"nodes": addresses, "feathers": 2}}, TypeError),
        ({"portcullis": {"nodes": ["shm:/nowhere.sock"]}}, portcullis_memory.Error),
    ]
    for extra, error in wrong:
        with pytest.raises(error):
            HiCache(config(addresses, extra_config=extra), {})


def test_sglang_makes_the_backend_by_its_name(addresses: list[str], torch: None) -> None:
    try:
        factory = importlib.import_module("sglang.srt.mem_cache.storage.backend_factory").StorageBackendFactory
    except ImportError as error:
        pytest.skip(f"SGLang cannot be used here: {error} (scripts/engines sets it up in an environment of its own)")
    extra = {
        **config(addresses).extra_config,
        "backend_name": "portcullis",
        "module_path": "portcullis_memory.sglang",
        "class_name": "HiCache",
    }
    cache, pool = factory.create_backend("dynamic", config(addresses, extra_config=extra), None), Pool(2)
    assert isinstance(cache, HiCache) and not HiCache.__abstractmethods__
    cache.register_mem_pool_host(pool)
    pool.fill(0, 1)
    assert cache.batch_set_v1(["page"], places(0)) == [True]
    assert cache.batch_exists(["page", "other"]) == 1
    assert cache.batch_get_v1(["page"], places(1)) == [True]
    assert (pool.memory[0] == pool.memory[1]).all()
    cache.close()
