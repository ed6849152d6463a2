"""Entries that are claimed and acknowledged, and are delivered again if their consumer dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import portcullis_memory
import pytest

LEASE = 0.05
LONG = 10.0


def test_what_is_not_acknowledged_comes_again_and_belongs_to_the_next_consumer(session, node):
    with session.create_queue("jobs", claims=True) as jobs, node.connect() as other, other.open_queue("jobs") as consumer:
        jobs.push(b"job")
        first = jobs.claim(LEASE)
        assert (first.entry, first.deliveries) == (b"job", 1)
        assert jobs.statistics()["claimed"] == 1
        again = consumer.claim(LONG, timeout=LONG)
        assert (again.entry, again.deliveries) == (b"job", 2)
        with pytest.raises(portcullis_memory.EndedError) as caught:
            first.acknowledge()
        assert caught.value.name == "claim-ended"
        again.acknowledge()
        assert jobs.claim(LEASE, timeout=3 * LEASE) is None
        jobs.end()
        with pytest.raises(portcullis_memory.Error) as caught:
            jobs.claim(LEASE)
        assert caught.value.name == "queue-closed"


def test_a_block_acknowledges_its_entry_and_gives_it_back_where_it_fails(session):
    with session.create_queue(claims=True) as jobs:
        jobs.push(b"job")
        with pytest.raises(KeyError), jobs.claim(LONG):
            raise KeyError
        with jobs.claim(LONG, timeout=LONG) as claim:
            claim.extend(LONG)
            assert claim.deliveries == 2
        assert jobs.claim(LEASE, timeout=0) is None and jobs.statistics()["claimed"] == 0


def test_what_was_delivered_too_often_is_a_dead_letter(session):
    with session.create_queue(claims=True) as jobs, session.create_queue() as dead:
        jobs.push(b"poison")
        jobs.push(b"job")
        seen = []
        while claim := jobs.claim(LONG, timeout=3 * LEASE, deliveries_max=3, dead_letters=dead):
            seen.append((claim.entry, claim.deliveries))
            claim.give_back() if claim.entry == b"poison" else claim.acknowledge()
        assert sorted(seen) == [(b"job", 1), (b"poison", 1), (b"poison", 2), (b"poison", 3)]
        assert dead.pop(timeout=0) == b"poison" and dead.pop(timeout=0) is None
        with pytest.raises(TypeError, match="go together"):
            jobs.claim(LONG, deliveries_max=3)


def test_a_dead_letter_whose_claim_is_over_meanwhile_is_no_error(session, node):
    with session.create_queue(claims=True) as jobs, node.connect() as other, other.open_queue(jobs.head) as thief:
        jobs.push(b"poison")
        jobs.claim(LONG).give_back()

        class Slow:
            """A queue whose push takes so long that another consumer gets the entry."""

            def push(self, entry: bytes) -> None:
                self.stolen = thief.claim(LONG, timeout=LONG)

        slow = Slow()
        assert jobs.claim(LEASE, timeout=0.1, deliveries_max=1, dead_letters=slow) is None
        assert slow.stolen.deliveries == 3
        slow.stolen.acknowledge()


def test_only_deliveries_that_are_counted_can_be_a_limit(session):
    with session.create_queue(claims=True) as jobs, session.create_queue() as dead:
        for wrong in (0, 1023):
            with pytest.raises(ValueError, match="1 to 1022"):
                jobs.claim(LEASE, timeout=0, deliveries_max=wrong, dead_letters=dead)
        assert jobs.claim(LEASE, timeout=0, deliveries_max=1022, dead_letters=dead) is None


def test_each_queue_has_one_kind_of_delivery(session):
    with session.create_queue(claims=True) as jobs, session.create_queue() as plain:
        for call in (lambda: jobs.pop(timeout=0), lambda: jobs.pop_many(2), lambda: plain.claim(LEASE, timeout=0)):
            with pytest.raises(portcullis_memory.CallerError) as caught:
                call()
            assert caught.value.name == "queue-delivery"
        with pytest.raises(portcullis_memory.CallerError, match="lease of a claim"):
            jobs.claim(1e5)


def test_coroutines_claim_and_acknowledge(session):
    async def main() -> None:
        async with session.acreate_queue(claims=True) as jobs, session.acreate_queue() as dead:
            waiting = asyncio.create_task(jobs.aclaim(LONG))
            await asyncio.sleep(0)
            await jobs.apush(b"job")
            async with await waiting as claim:
                await claim.aextend(LONG)
                assert (claim.entry, claim.deliveries) == (b"job", 1)
            assert await jobs.aclaim(LEASE, timeout=0) is None
            await jobs.apush(b"poison")
            await (await jobs.aclaim(LONG)).agive_back()
            assert await jobs.aclaim(LONG, timeout=3 * LEASE, deliveries_max=1, dead_letters=dead) is None
            assert await dead.apop() == b"poison"
            # An entry that a cancelled coroutine claims is given back.
            waiting = asyncio.create_task(jobs.aclaim(LONG))
            await asyncio.sleep(0)
            waiting.cancel()
            await jobs.apush(b"next")
            claim = await jobs.aclaim(LONG, timeout=LONG)
            assert claim.entry == b"next"
            await claim.aacknowledge()

    asyncio.run(main())


def test_no_job_is_lost_with_the_consumers_that_are_killed():
    script = Path(__file__).parent.parent / "benchmarks" / "killed_consumers.py"
    options = ["--jobs", "1350", "--consumers", "3", "--kills", "8"]
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1350 jobs, 0 lost" in done.stdout, done.stdout
