"""SGLang's third-level cache in the memory of Portcullis nodes.

:class:`HiCache` is a backend for SGLang's hierarchical cache (``HiCacheStorage``), which SGLang loads by its name::

    --hicache-storage-backend dynamic
    --hicache-mem-layout page_first
    --hicache-storage-backend-extra-config '{
        "backend_name": "portcullis",
        "module_path": "portcullis_memory.sglang",
        "class_name": "HiCache",
        "interface_v1": 1,
        "portcullis": {"nodes": ["shm:/run/portcullis.sock", "udp:memory2.lan:7472"], "copies": 2}}'

Storage
    The blocks are in a :class:`portcullis_memory.BlockStore`. With ``interface_v1`` each part of a page that lies in one
    piece in SGLang's host memory is a block, which is moved without a copy in Python: the keys and the values of a page in
    the layout ``page_first``, and those of each layer in the layout ``layer_first``. Without it a page is a block. The keys
    contain the model and the ranks.

Hits
    A page is a hit if all its parts were read as a whole, under live permissions. Everything else is a miss: SGLang computes
    the page again. No method raises an exception because of a node.

Hybrid models, for which SGLang calls the methods of its second interface (``batch_get_v2``), are not supported.

This module can be imported without SGLang and without torch. It needs Linux.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from portcullis_memory.blocks import BlockStore, NodeStatus
from portcullis_memory.errors import Error

__all__ = ["HiCache"]

_log = logging.getLogger(__name__)

_Base: Any
try:
    _Base = importlib.import_module("sglang.srt.mem_cache.hicache_storage").HiCacheStorage
except ImportError:
    # SGLang checks the base class, and is there when it does.
    _Base = object


class HiCache(_Base):  # type: ignore[misc]
    """A backend for SGLang's hierarchical cache; see the module's description.

    The options are those of :class:`portcullis_memory.BlockStore`, in ``extra_config["portcullis"]``. ``nodes`` must be
    given. ``table`` is ``"sglang"``, and ``arena`` ``"64MiB"``, unless they are given.

    Raises KeyError or TypeError if an option is missing or unknown, and :class:`portcullis_memory.Error` if no node can be
    reached when SGLang starts. Nodes that are lost later are tried again in the background.
    """

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None) -> None:
        extra = storage_config.extra_config or {}
        options = extra.get("portcullis")
        if not isinstance(options, dict) or "nodes" not in options:
            raise KeyError('the extra config of the storage backend has no "portcullis": {"nodes": [...]}')
        self._is_in_parts = bool(extra.get("interface_v1"))
        self._prefix = _prefix_of(storage_config)
        self._parts_of_page: int | None = None
        self._store = BlockStore(**{"table": "sglang", "arena": "64MiB", **options})

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Notes SGLang's host memory, from which pages are stored and into which they are loaded."""
        self.mem_pool_host = mem_pool_host
        self._parts_of_page = None

    # -- Pages in parts ------------------------------------------------------------------------------------------------

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores the pages at these places of the host memory. Returns for each whether all of it is stored."""
        names, parts = self._parts_at(keys, host_indices)
        puts = self._store.put_many(names, parts)
        return _pages([put.copies > 0 for put in puts], len(keys))

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Loads pages to these places of the host memory. Returns for each whether all of it was loaded."""
        names, parts = self._parts_at(keys, host_indices)
        return _pages(self._store.get_many_into(names, parts), len(keys))

    def _parts_at(self, keys: Sequence[str], host_indices: Any) -> tuple[list[bytes], list[Any]]:
        """Returns the names and the bytes of the parts of pages."""
        addresses, lengths = self.mem_pool_host.get_page_buffer_meta(host_indices)
        if isinstance(lengths, int):
            lengths = [lengths] * len(addresses)
        count, rest = divmod(len(addresses), max(1, len(keys)))
        if rest or len(addresses) != len(lengths):
            raise ValueError(f"{len(keys)} keys, and {len(addresses)} parts of pages at the places given for them")
        parts = [(ctypes.c_ubyte * length).from_address(address) for address, length in zip(addresses, lengths)]
        return [name for key in keys for name in self._names(key, count)], parts

    def _names(self, key: str, parts: int) -> list[bytes]:
        return [b"%s%s#%d" % (self._prefix, key.encode(), part) for part in range(parts)]

    def _names_to_find(self, key: str) -> list[bytes]:
        """Returns the names of all blocks of a page."""
        if not self._is_in_parts:
            return [self._prefix + key.encode()]
        if self._parts_of_page is None:
            page = importlib.import_module("torch").arange(self.mem_pool_host.page_size)
            self._parts_of_page = len(self.mem_pool_host.get_page_buffer_meta(page)[0])
        return self._names(key, self._parts_of_page)

    # -- Whole pages ---------------------------------------------------------------------------------------------------

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any | None:
        """Loads a page into a tensor. Returns the tensor, or None for a miss."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any | None]:
        """Loads pages into tensors. Returns for each its tensor, or None for a miss."""
        hits = self._store.get_many_into([self._prefix + key.encode() for key in keys], target_locations)
        return [target if is_hit else None for target, is_hit in zip(target_locations, hits)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores the page that a tensor has. Returns whether it is stored."""
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Stores the pages that tensors have. Returns whether all are stored."""
        puts = self._store.put_many([self._prefix + key.encode() for key in keys], values)
        return all(put.copies > 0 for put in puts)

    # -- Looks ---------------------------------------------------------------------------------------------------------

    def exists(self, key: str) -> bool:
        """Whether a page is stored. The nodes hold it for the next load, for half of the lease."""
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Returns how many of the pages are stored before the first one that is not.

        The nodes hold the pages that were found for the next load, for half of the lease.
        """
        names = [name for key in keys for name in self._names_to_find(key)]
        found = [length is not None for length in self._store.look_up(names)]
        pages = _pages(found, len(keys))
        return pages.index(False) if False in pages else len(pages)

    # -- The rest ------------------------------------------------------------------------------------------------------

    def clear(self) -> bool:
        """Removes all pages of this model and these ranks from the nodes that are reached. Returns whether all are gone."""
        lists = self._store.list_blocks().values()
        blocks = [block for found in lists if not isinstance(found, Error) for block in found]
        try:
            self._store.remove_many({block.key for block in blocks if block.key.startswith(self._prefix)})
        except Error as error:
            _log.error("portcullis: not all pages were removed: %s", error)
            return False
        return True

    def nodes(self) -> list[NodeStatus]:
        """Returns the state and the counts of each node."""
        return self._store.status()

    def close(self) -> None:
        """Closes the store. The pages stay."""
        self._store.close()


def _pages(parts: Iterable[bool], pages: int) -> list[bool]:
    """Returns for each page whether all its parts are true. The pages have equally many parts, one after another."""
    parts = list(parts)
    count = len(parts) // max(1, pages)
    return [all(parts[page * count : (page + 1) * count]) for page in range(pages)]


def _prefix_of(config: Any) -> bytes:
    """Returns the part of the keys that keeps the pages of models and ranks apart."""
    ranks = "" if config.is_mla_model else f"tp{config.tp_rank}/{config.tp_size}"
    if config.pp_size > 1:
        ranks += f"pp{config.pp_rank}/{config.pp_size}"
    # Versions of SGLang before the context ranks have none.
    if getattr(config, "attn_cp_size", 1) > 1:
        ranks += f"cp{config.attn_cp_rank}/{config.attn_cp_size}"
    return f"{config.model_name or ''}@{ranks}@".encode()
