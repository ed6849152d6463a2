"""Blocks on several nodes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import portcullis_memory
import pytest
from portcullis_memory import BlockStore

LENGTH = 100_000


def content(number: int, length: int = LENGTH) -> bytes:
    return (number.to_bytes(4, "little") * (length // 4 + 1))[:length]


def read(store: BlockStore, name: bytes) -> bytes | None:
    block = store.get(name)
    return None if block is None else bytes(block)


async def aread(store: BlockStore, name: bytes) -> bytes | None:
    block = await store.aget(name)
    return None if block is None else bytes(block)


def key(number: int) -> bytes:
    return b"block %d" % number


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[portcullis_memory.Node]]:
    nodes = [portcullis_memory.Node(memory="64MiB") for _ in range(3)]
    yield nodes
    for node in nodes:
        node.stop()


@pytest.fixture
def opened(nodes: list[portcullis_memory.Node]) -> Iterator[BlockStore]:
    with BlockStore([str(node.address) for node in nodes], copies=2, arena="4MiB", lease=10) as store:
        yield store
        store.remove_many([found.key for found in all_blocks(store)])


def all_blocks(store: BlockStore) -> list[portcullis_memory.ListedBlock]:
    listed = []
    for blocks in store.list_blocks().values():
        assert not isinstance(blocks, portcullis_memory.Error)
        listed += blocks
    return listed


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_block_is_stored_found_read_and_removed(opened: BlockStore) -> None:
    assert opened.put(b"a", b"some bytes") == 2
    assert opened.put("a", b"some bytes") == 2, "a text stands for its UTF-8"
    assert opened.look_up([b"a", b"b"]) == [10, None]
    assert opened.contains("a")
    assert read(opened, b"a") == b"some bytes"
    assert opened.get(b"b") is None
    assert sorted((block.key, block.length) for block in all_blocks(opened)) == [(b"a", 10)] * 2
    assert opened.remove(b"a") == 2
    assert opened.remove(b"a") == 0
    assert opened.get(b"a") is None


def test_batches_go_into_any_buffers(opened: BlockStore) -> None:
    numpy = pytest.importorskip("numpy")
    keys = [key(number) for number in range(40)]
    puts = opened.put_many(keys, [content(number) for number in range(40)])
    assert puts == [portcullis_memory.PutResult(2, None)] * 40
    array = numpy.zeros((40, LENGTH // 4), dtype=numpy.uint32)
    assert opened.get_many_into(keys, list(array)) == [True] * 40
    assert (array == numpy.arange(40, dtype=numpy.uint32)[:, None]).all()
    assert opened.get_many_into([b"nothing", keys[0]], [bytearray(1), bytearray(7)]) == [False, False]


def test_a_program_is_told_what_is_wrong_with_its_arguments(opened: BlockStore) -> None:
    shared = bytearray(2 * LENGTH)
    view = memoryview(shared)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: opened.put_many([b"a"], []), "1 keys and 0 buffers"),
        (lambda: opened.put(7, b"a"), "a key is bytes or a str"),  # type: ignore[arg-type]
        (lambda: opened.get_into(b"a", b"read-only"), "the buffer is read-only"),
        (lambda: opened.get_many_into([b"a", b"b"], [view[:10], view[9:]]), "bytes in common"),
        (lambda: opened.put(b"a", memoryview(b"abcd")[::2]), "do not lie one after another"),
        (lambda: BlockStore([], copies=1), "no node is named"),
        (lambda: BlockStore(["shm:/nowhere"], copies=0), "1 or more"),
        (lambda: BlockStore(7), "nodes is a list of addresses"),  # type: ignore[arg-type]
        (lambda: opened.wait(12_345), "names no operation"),
    ]
    for call, text in wrong:
        with pytest.raises(portcullis_memory.CallerError, match=text):
            call()
    with pytest.raises(portcullis_memory.Error, match="none of the nodes can be reached\n  shm:/nowhere: "):
        BlockStore(["shm:/nowhere"])
    with pytest.raises(portcullis_memory.CallerError, match="a block has at least one byte"):
        opened.put(b"a", b"")


def test_a_buffer_is_free_again_after_the_end(opened: BlockStore) -> None:
    block, target = bytearray(content(1)), bytearray(LENGTH)
    opened.put(key(1), block)
    assert opened.get_into(key(1), target)
    # A bytearray that is still in use can not change its size.
    block.extend(b"more")
    target.extend(b"more")
    assert target[:LENGTH] == content(1)


def test_blocks_outlive_a_node() -> None:
    nodes = [portcullis_memory.Node(memory="32MiB") for _ in range(3)]
    with BlockStore([str(node.address) for node in nodes], copies=2, arena="4MiB") as store:
        keys = [key(number) for number in range(30)]
        assert all(put.copies == 2 for put in store.put_many(keys, [content(number) for number in range(30)]))
        nodes[1].stop()
        for number in range(30):
            assert read(store, keys[number]) == content(number)
        until(lambda: [node.lost is None for node in store.status()].count(False) == 1)
        nodes[0].stop()
        nodes[2].stop()
        assert store.get(keys[0]) is None
        with pytest.raises(portcullis_memory.Error):
            store.put(keys[0], content(0))


def test_threads_share_a_store(opened: BlockStore) -> None:
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 20):
                assert opened.put(key(number), content(number)) == 2
                assert read(opened, key(number)) == content(number)
                assert opened.contains(key(number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(1_000 * number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_coroutines_share_a_store(opened: BlockStore) -> None:
    async def work(number: int) -> None:
        assert await opened.aput(key(number), content(number)) == 2
        assert await aread(opened, key(number)) == content(number)
        assert await opened.acontains(key(number))
        assert await opened.aremove(key(number)) == 2
        assert await opened.aget(key(number)) is None

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(50)))
        # One that is cancelled leaves its buffer in use until the operation has ended, and harms no other.
        target = bytearray(LENGTH)
        await opened.aput(key(1), content(1))
        task = asyncio.ensure_future(opened.aget_into(key(1), target))
        await asyncio.sleep(0)
        task.cancel()
        assert await aread(opened, key(1)) == content(1)

    asyncio.run(main())
    asyncio.run(main())


def test_an_event_loop_that_ends_early_leaves_the_store_to_the_next_one(opened: BlockStore) -> None:
    opened.put_many([key(number) for number in range(20)], [content(number) for number in range(20)])

    async def gives_up() -> None:
        for number in range(20):
            task = asyncio.ensure_future(opened.aget_into(key(number), bytearray(LENGTH)))
            await asyncio.sleep(0)
            task.cancel()

    async def reads() -> None:
        assert await aread(opened, key(1)) == content(1)

    for _ in range(5):
        asyncio.run(gives_up())
        asyncio.run(reads())


def test_a_close_by_another_thread_gives_coroutines_their_ends(nodes: list[portcullis_memory.Node]) -> None:
    store = BlockStore([str(node.address) for node in nodes], copies=2, arena="4MiB")
    ends: list[object] = []

    async def put(number: int) -> None:
        ends.append(await store.aput(key(9_000 + number), content(number)))

    async def main() -> None:
        tasks = [asyncio.ensure_future(put(number)) for number in range(30)]
        await asyncio.sleep(0)
        closing = threading.Thread(target=store.close)
        closing.start()
        await asyncio.gather(*tasks)
        closing.join()

    asyncio.run(main())
    assert ends == [2] * 30


def test_threads_put_one_key_at_once(opened: BlockStore) -> None:
    copies: list[int] = []
    for number in range(10):
        put = lambda: copies.append(opened.put(key(number), content(number)))  # noqa: B023
        threads = [threading.Thread(target=put) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert copies == [2] * 40


def test_a_store_that_is_dropped_or_closed_uses_no_buffer_any_more(nodes: list[portcullis_memory.Node]) -> None:
    for ends in (BlockStore.close, lambda store: None):
        store = BlockStore([str(node.address) for node in nodes], copies=2, arena="4MiB")
        blocks = [bytearray(content(number)) for number in range(50)]
        for number, block in enumerate(blocks):
            store.begin_put([key(5_000 + number)], [block])
        ends(store)
        del store
        for block in blocks:
            block.clear()  # This raises while the buffer is in use.


def test_a_child_of_fork_gets_an_error(opened: BlockStore) -> None:
    child = os.fork()
    if child == 0:
        try:
            opened.look_up([b"a"])
        except portcullis_memory.CallerError as error:
            os._exit(7 if error.name == "forked" else 1)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_no_block_is_lost_with_the_nodes_that_are_killed() -> None:
    script = Path(__file__).parent.parent / "benchmarks" / "killed_nodes.py"
    options = ["--kills", "6", "--blocks", "12"]
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 blocks lost, 0 with wrong bytes" in done.stdout, done.stdout
