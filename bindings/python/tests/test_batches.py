"""Batches, and operations that are submitted and polled."""

from __future__ import annotations

import select

import portcullis_memory
import pytest


def test_results_stand_where_their_operations_do(session):
    permission = session.allocate("1MiB", lifetime=5, rights="rwa")
    permission.write(bytes(64))
    into = bytearray(4)
    batch = session.batch()
    places = [
        batch.write(permission, b"abcd"),
        batch.read_into(permission, into),
        batch.read_bytes(permission, 4),
        batch.read(permission, 4),
        batch.fetch_and_add(permission, 8, 7),
        batch.compare_and_swap(permission, 8, 7, 9),
        batch.read_bytes(permission, 1, offset=1 << 20),
        batch.allocate(64, keep=True),
        batch.extend(permission, 9),
    ]
    assert places == list(range(9)) and len(batch) == 9
    nothing, none, copied, view, before, seven, error, allocated, extended = batch.run()
    assert nothing is none is extended is None
    assert into == copied == view.tobytes() == b"abcd"
    assert (before, seven) == (0, 7)
    assert isinstance(error, portcullis_memory.CallerError) and error.name == "outside-range"
    assert permission.remaining > 6
    batch.revoke(allocated, free=True)
    batch.acquire(allocated.object)
    freed, gone = batch.run()
    assert freed is None and isinstance(gone, portcullis_memory.Error)
    assert batch.run() == []


def test_a_batch_longer_than_any_queue_is_carried_out(session, permission):
    permission.write(bytes(range(256)) * 4)
    batch = session.batch()
    for n in range(5_000):
        batch.read_bytes(permission, 1, n % 256)
    assert b"".join(batch.run()) == (bytes(range(256)) * 20)[:5_000]


def test_a_batch_whose_reads_are_longer_than_the_arena_is_carried_out(node):
    with node.connect(arena="1MiB") as session, session.allocate("2MiB", lifetime=10) as permission:
        pattern = bytes(n % 249 for n in range(2 << 20))
        permission.write(pattern)
        batch = session.batch()
        for at in range(0, 2 << 20, 128 << 10):
            batch.read_bytes(permission, 128 << 10, at)
        assert b"".join(batch.run()) == pattern


def test_what_ended_meanwhile_fails_alone(session, permission):
    other = session.allocate(64)
    batch = session.batch()
    batch.read_bytes(other, 1)
    batch.read_bytes(permission, 1)
    other.revoke()
    error, read = batch.run()
    assert isinstance(error, portcullis_memory.CallerError) and error.name == "closed"
    assert isinstance(read, bytes)


def test_many_reads_fill_their_buffers(session, permission):
    pattern = bytes(range(128))
    permission.write(pattern)
    parts = [bytearray(2) for _ in range(64)]
    session.read_many([(permission, 2 * n, part) for n, part in enumerate(parts)])
    assert b"".join(parts) == pattern
    session.read_many((permission, 0, part) for part in parts)
    assert set(map(bytes, parts)) == {pattern[:2]}
    with pytest.raises(portcullis_memory.CallerError, match="outside"):
        session.read_many([(permission, 1 << 20, parts[0]), (permission, 4, parts[1])])
    assert parts[1] == pattern[4:6]
    for wrong in ([5], [(permission, 0)]):
        with pytest.raises(portcullis_memory.CallerError, match="tuple"):
            session.read_many(wrong)
    with pytest.raises(TypeError):
        session.read_many([("permission", 0, parts[0])])


def test_what_was_submitted_comes_from_polls_of_an_own_event_loop(session, permission):
    permission.write(b"abcd")
    batch = session.batch()
    batch.read_bytes(permission, 4)
    batch.allocate(64)
    batch.read_bytes(permission, 5, offset=1 << 20)
    numbers = batch.submit()
    assert len(batch) == 0
    permission.read_bytes(1)  # A call that waits takes no result of the batch.
    results: dict[int, object] = {}
    while len(results) < 3:
        results.update(session.poll())
        within = session.arm()
        if within != 0 and len(results) < 3:
            select.select([session.fileno()], [], [], 0.05 if within is None else min(within, 0.05))
    read, allocated, error = (results[number] for number in numbers)
    assert read == b"abcd"
    assert isinstance(allocated, portcullis_memory.Permission)
    assert isinstance(error, portcullis_memory.CallerError)


def test_what_is_forgotten_comes_to_nothing(session, node):
    batch = session.batch()
    batch.allocate(64, lifetime=10, keep=True)
    [number] = batch.submit()
    session.forget(number)
    session.allocate(64).revoke()
    session.allocate(64).revoke()
    assert session.poll() == []


def test_a_batch_ends_no_permission_of_another_session(node):
    with node.connect() as one, node.connect() as other:
        permission = one.allocate(64, lifetime=10)
        with pytest.raises(portcullis_memory.CallerError) as raised:
            other.batch().revoke(permission)
        assert raised.value.name == "foreign-permission"
        permission.write(b"it stands")
        permission.revoke(free=True)
