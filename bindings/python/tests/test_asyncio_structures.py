"""Coroutines of tables and queues."""

from __future__ import annotations

import asyncio
import threading

import portcullis_memory
import pytest


def test_async_with_closes_sessions_tables_and_queues(node):
    async def main() -> None:
        async with node.connect() as session:
            async with session.acreate_table("towns") as table, session.acreate_queue("jobs") as queue:
                await table.aset(b"Bern", b"CH")
                await queue.apush(b"job")
            assert table.closed and queue.closed and not session.closed
            with pytest.raises(portcullis_memory.CallerError, match="closed"):
                await table.aget(b"Bern")
            async with session.aopen_table("towns", read_only=True) as table, session.aopen_queue("jobs") as queue:
                assert (await table.aget(b"Bern"), await queue.apop()) == (b"CH", b"job")
            with pytest.raises(KeyError):
                async with session.create_queue() as queue:
                    raise KeyError
            assert queue.closed
            await (await session.aopen_table("towns")).adestroy("towns")
            await (await session.aopen_queue("jobs")).adestroy()
        assert session.closed

    asyncio.run(main())


def test_each_coroutine_of_a_table_does_what_its_call_does(session):
    async def main() -> None:
        table = await session.acreate_table(lease=0.1)
        assert await table.ainsert(b"a", b"1") and not await table.ainsert(b"a", b"2")
        assert await table.areplace(b"a", b"2") and not await table.areplace(b"none", b"2")
        assert await table.acompare_and_set(b"a", b"2", b"3") and not await table.acompare_and_set(b"a", b"2", b"4")
        await table.aset(bytearray(b"b"), memoryview(b"4"))
        assert await table.aget(b"a") == table[b"a"] == b"3" and await table.aget(b"none") is None
        assert await table.aget(b"none", b"x") == await table.apop(b"none", b"x") == b"x"
        assert await table.aget_many(iter([b"a", b"none", b"b"])) == [b"3", None, b"4"]
        assert sorted(await table.akeys()) == [b"a", b"b"] and dict(await table.aitems()) == dict(table.items())
        assert await table.alength() == 2 and await table.aremove_expired() == 0
        assert (await table.astatistics())["keys"] == 2 and set(await table.asweep()) == set(table.sweep())
        assert await table.aremove(b"a") and not await table.aremove(b"a")
        assert await table.apop(b"b") == b"4" and await table.apop(b"b") is None
        await table.adestroy()
        assert table.closed

    asyncio.run(main())


def test_each_coroutine_of_a_queue_does_what_its_call_does(session):
    async def main() -> None:
        queue = await session.acreate_queue()
        for entry in (b"1", bytearray(b"2"), b"3", b"4"):
            await queue.apush(entry)
        assert await queue.apop() == b"1" and await queue.apop_many(2) == [b"2", b"3"]
        assert (await queue.astatistics())["slots"] == 1
        await queue.aend()
        await queue.asweep()
        assert await queue.apop(timeout=5) == b"4"
        with pytest.raises(portcullis_memory.Error) as caught:
            await queue.apop()
        assert caught.value.name == "queue-closed"
        await queue.aclose()
        await queue.aclose()

    asyncio.run(main())


def test_hundreds_of_operations_of_one_table_at_once_and_without_a_thread(session):
    async def main() -> None:
        with session.create_table() as table:
            before = threading.active_count()
            await asyncio.gather(*(table.aset(b"%d" % n, b"%d" % (n * n)) for n in range(500)))
            values = await asyncio.gather(*(table.aget(b"%d" % n) for n in range(500)))
            assert values == [b"%d" % (n * n) for n in range(500)]
            assert threading.active_count() == before

    asyncio.run(main())


def test_structures_are_opened_at_once_while_the_session_is_used(session, permission):
    async def main() -> None:
        opened, read = await asyncio.gather(
            asyncio.gather(session.acreate_table()._open(), *(session.acreate_queue()._open() for _ in range(3))),
            asyncio.gather(*(session.aread(permission, 8) for _ in range(100))),
        )
        assert len(read) == 100
        await asyncio.gather(*(structure.adestroy() for structure in opened))

    asyncio.run(main())


def test_a_consumer_awaits_an_entry_that_its_own_handle_pushes(session):
    async def main() -> None:
        async with session.acreate_queue() as queue:
            waiting = asyncio.ensure_future(queue.apop())
            assert await queue.apop(timeout=0.02) is None and not waiting.done()
            await queue.apush(b"late")
            assert await waiting == b"late"

    asyncio.run(main())


def test_a_pop_that_is_cancelled_leaves_the_next_entry_to_others(session, node):
    async def main() -> None:
        async with session.acreate_queue() as queue, node.connect() as another:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.apop(), 0.02)
            async with another.aopen_queue(queue.head) as other:
                # A pop of the same handle ends after the cancelled one has looked for the last time.
                assert await queue.apop(timeout=0.02) is None
                await other.apush(b"entry")
                assert await other.apop(timeout=5) == b"entry"

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(4))
def test_no_entry_is_lost_where_pops_are_cancelled(session, turns):
    async def main() -> None:
        async with session.acreate_queue() as queue:
            popped = []
            for n in range(50):
                waiting = asyncio.ensure_future(queue.apop() if n % 2 else queue.apop_many(1))
                await queue.apush(b"%d" % n)
                for _ in range(turns):
                    await asyncio.sleep(0)
                waiting.cancel()
                try:
                    got = await waiting
                    popped += [got] if isinstance(got, bytes) else got
                except asyncio.CancelledError:
                    pass
            while (entry := await queue.apop(timeout=0.05)) is not None:
                popped.append(entry)
            assert sorted(popped) == sorted(b"%d" % n for n in range(50))

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(4))
def test_an_entry_that_a_cancelled_pop_takes_goes_to_a_pop_that_waits(session, turns):
    async def main() -> None:
        async with session.acreate_queue() as queue:
            for n in range(50):
                first, second = (asyncio.ensure_future(queue.apop()) for _ in range(2))
                await queue.apush(b"%d" % n)
                for _ in range(turns):
                    await asyncio.sleep(0)
                first.cancel()
                await asyncio.wait([first])
                if not first.cancelled():
                    await queue.apush(b"another")
                assert await asyncio.wait_for(second, 5) in (b"%d" % n, b"another")

    asyncio.run(main())


def test_an_entry_that_a_cancelled_pop_has_taken_goes_to_a_call_that_waits(session):
    queue = session.create_queue()

    async def main() -> None:
        queue.push(b"1")
        queue.push(b"2")
        waiting = asyncio.ensure_future(queue.apop_many(2))
        while queue._driving is None or queue._driving.under_way:
            await asyncio.sleep(0)
            if waiting._fut_waiter is not None and waiting._fut_waiter.done():  # type: ignore[attr-defined]
                break
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(main())
    assert queue.pop(timeout=0) == b"1" and queue.pop_many(5) == [b"2"]
    queue.destroy()


def test_calls_that_wait_and_coroutines_share_a_handle(session):
    async def main() -> None:
        with session.create_table() as table, session.create_queue() as queue:
            sets = [asyncio.ensure_future(table.aset(b"%d" % n, b"x")) for n in range(50)]
            pops = [asyncio.ensure_future(queue.apop()) for _ in range(10)]
            await asyncio.sleep(0)
            for n in range(50):
                table[b"call %d" % n] = b"y"
                queue.push(b"%d" % n)
            await asyncio.gather(*sets)
            assert len(table) == 100
            popped = set(await asyncio.gather(*pops))
            while some := queue.pop_many(100):
                popped.update(some)
            assert len(popped) == 50

    asyncio.run(main())


def test_errors_come_out_of_the_coroutine_that_asked(session):
    async def main() -> None:
        async with session.acreate_table() as table:
            good, long, wrong = await asyncio.gather(
                table.ainsert(b"key", b"value"),
                table.aset(b"key", bytes((1 << 20) + 1)),
                table.aget("text"),
                return_exceptions=True,
            )
            assert good is True and isinstance(wrong, TypeError)
            assert isinstance(long, portcullis_memory.CallerError) and long.name == "value-too-long"
        with pytest.raises(portcullis_memory.ObjectGoneError):
            await session.aopen_table("no such table")

    asyncio.run(main())


@pytest.mark.parametrize("way", ["close", "aclose", "destroy", "adestroy"])
def test_a_queue_that_is_closed_ends_what_is_awaited(session, way):
    async def main() -> None:
        queue = session.create_queue()
        waiting = asyncio.ensure_future(queue.apop())
        await asyncio.sleep(0.02)
        ended = getattr(queue, way)()
        if way.startswith("a"):
            await ended
        with pytest.raises(portcullis_memory.CallerError, match="closed"):
            await waiting

    asyncio.run(main())


def test_a_node_that_goes_ends_what_is_awaited():
    async def main() -> None:
        node = portcullis_memory.Node(memory="16MiB")
        with node.connect() as session:
            queue = session.create_queue()
            waiting = asyncio.ensure_future(queue.apop())
            await asyncio.sleep(0.02)
            node.stop()
            with pytest.raises(portcullis_memory.NodeError):
                await waiting
            with pytest.raises(portcullis_memory.NodeError):
                await queue.apush(b"late")
            queue.close()

    asyncio.run(main())


def test_a_loop_that_is_closed_takes_nothing_with_it(session):
    with session.create_queue() as queue:

        async def begin() -> None:
            asyncio.ensure_future(queue.apop()).add_done_callback(lambda pop: pop.cancelled())
            await asyncio.sleep(0)

        asyncio.run(begin())
        queue.push(b"1")
        assert asyncio.run(queue.apop(timeout=5)) == b"1"
        asyncio.run(begin())
        queue.push(b"2")
        assert queue.pop(timeout=5) == b"2"
