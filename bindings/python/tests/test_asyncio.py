"""Coroutines."""

from __future__ import annotations

import asyncio
import gc
import threading

import portcullis_memory
import pytest


def test_hundreds_of_reads_at_once(session, permission):
    pattern = bytes(range(250)) * 4
    permission.write(pattern)

    async def main() -> None:
        read = await asyncio.gather(*(session.aread(permission, 1, n) for n in range(1_000)))
        assert b"".join(read) == pattern

    asyncio.run(main())
    # The same coroutine runs on another event loop as well.
    asyncio.run(main())


def test_each_coroutine_does_what_its_call_does(session):
    async def main() -> None:
        permission = await session.aallocate("1KiB", lifetime=5, rights="rwa", keep=True)
        await session.awrite(permission, b"abcd")
        into = bytearray(4)
        await session.aread_into(permission, into)
        assert into == await session.aread(permission, 4) == b"abcd"
        assert len(await session.aread(permission, offset=1000)) == 24
        assert await session.afetch_and_add(permission, 8, 0) == await session.acompare_and_swap(permission, 16, 1, 2) * 0
        await session.aextend(permission, 9)
        assert permission.remaining > 6
        await session.arevoke(permission)
        again = await session.aacquire(permission.object)
        assert again.rights == "r" and await session.aread(again, 4) == b"abcd"
        await session.arevoke(again, free=True)
        with pytest.raises(portcullis_memory.Error):
            await session.aacquire(permission.object)

    asyncio.run(main())


def test_long_transfers_go_in_pieces(node):
    with node.connect(arena="1MiB") as session, session.allocate("4MiB", lifetime=10) as permission:
        pattern = bytes(n % 247 for n in range(4 << 20))

        async def main() -> None:
            await session.awrite(permission, pattern)
            into = bytearray(4 << 20)
            await asyncio.gather(session.aread_into(permission, into), session.aread(permission, 100))
            assert into == pattern
            assert await session.aread(permission) == pattern

        asyncio.run(main())


def test_errors_come_out_of_the_coroutine_that_asked(session, permission):
    async def main() -> None:
        read, outside, readonly = await asyncio.gather(
            session.aread(permission, 1),
            session.aread(permission, 1, 1 << 20),
            session.aread_into(permission, b"constant"),
            return_exceptions=True,
        )
        assert isinstance(read, bytes)
        assert isinstance(outside, portcullis_memory.CallerError) and outside.name == "outside-range"
        assert isinstance(readonly, portcullis_memory.CallerError) and "read-only" in str(readonly)

    asyncio.run(main())


def test_the_loop_goes_on_while_the_node_lets_a_request_wait(node):
    with node.connect() as session, node.connect() as holder:
        held = holder.allocate(64, lifetime=10)

        async def main() -> None:
            waiting = asyncio.ensure_future(session.aacquire(held.object, wait=30))
            for _ in range(5):
                await asyncio.sleep(0.01)
            assert not waiting.done()
            held.revoke()
            with await waiting as permission:
                assert permission.object == held.object

        asyncio.run(main())


def test_a_permission_that_comes_after_its_coroutine_was_cancelled_is_given_back(node):
    with node.connect() as session, node.connect() as holder, node.connect() as third:
        held = holder.allocate(64, lifetime=10, keep=True)

        async def main() -> None:
            waiting = asyncio.ensure_future(session.aacquire(held.object, lifetime=10, rights="rw", wait=30))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            at_once = asyncio.ensure_future(session.aallocate(64))
            await asyncio.sleep(0)
            at_once.cancel()
            held.revoke()
            # The session goes on, and no permission of the cancelled coroutine holds the object.
            mine = asyncio.ensure_future(asyncio.to_thread(third.acquire, held.object, rights="rw", wait=20))
            while not mine.done():
                await session.arevoke(await session.aallocate(64))
            (await mine).revoke(free=True)

        asyncio.run(main())


def test_a_cancelled_read_leaves_its_buffer_alone(session, permission):
    async def main() -> None:
        into = bytearray(64)
        reads = [asyncio.ensure_future(session.aread_into(permission, into)) for _ in range(100)]
        await asyncio.sleep(0)
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        into.extend(b"a bytearray that is exported cannot grow")
        assert await session.aread(permission, 1) is not None

    asyncio.run(main())
    gc.collect()


def test_a_long_transfer_that_fails_leaves_its_buffer_alone(session):
    permission = session.allocate("1MiB", lifetime=10)
    permission.write(b"x" * (1 << 20))

    async def main() -> None:
        into = bytearray(2 << 20)
        with pytest.raises(portcullis_memory.Error) as raised:
            await session.aread_into(permission, into)
        assert raised.value.name == "outside-range"
        assert len(asyncio.all_tasks()) == 1
        into[:] = bytes(len(into))
        # Operations that were begun before this read have ended when it has.
        assert await session.aread(permission, 1) == b"x"
        assert into == bytes(len(into))

    asyncio.run(main())


def test_a_loop_that_is_closed_takes_nothing_with_it(session, permission):
    async def begin() -> None:
        asyncio.ensure_future(session.aread(permission, 1)).add_done_callback(lambda read: read.cancelled())
        asyncio.ensure_future(session.aallocate(64))
        await asyncio.sleep(0)

    asyncio.run(begin())
    assert len(asyncio.run(session.aread(permission, 2))) == 2
    assert session.poll() == []


def test_a_session_that_is_closed_ends_what_is_awaited(node):
    async def main() -> None:
        session, holder = node.connect(), node.connect()
        held = holder.allocate(64, lifetime=10)
        waiting = asyncio.ensure_future(session.aacquire(held.object, wait=30))
        await asyncio.sleep(0.03)
        session.close()
        with pytest.raises(portcullis_memory.CallerError, match="closed"):
            await waiting
        with pytest.raises(portcullis_memory.CallerError, match="closed"):
            await session.aallocate(64)
        holder.close()

    asyncio.run(main())


def test_a_node_that_goes_ends_what_is_awaited():
    async def main() -> None:
        node = portcullis_memory.Node(memory="16MiB")
        with node.connect() as session, node.connect() as holder:
            held = holder.allocate(64, lifetime=10)
            waiting = asyncio.ensure_future(session.aacquire(held.object, wait=30))
            await asyncio.sleep(0.03)
            node.stop()
            with pytest.raises(portcullis_memory.NodeError):
                await waiting

    asyncio.run(main())


def test_calls_that_wait_and_coroutines_share_a_session(session, permission):
    async def main() -> None:
        reads = [asyncio.ensure_future(session.aread(permission, 8)) for _ in range(50)]
        await asyncio.sleep(0)
        for _ in range(50):
            permission.read_bytes(8)
        assert len(await asyncio.gather(*reads)) == 50

    asyncio.run(main())


def test_no_thread_is_started(session, permission):
    async def main() -> None:
        before = threading.active_count()
        await asyncio.gather(*(session.aread(permission, 8) for _ in range(100)))
        assert threading.active_count() == before

    asyncio.run(main())
