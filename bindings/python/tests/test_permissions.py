"""Memory, permissions, and names."""

from __future__ import annotations

import math
import pickle
import time

import portcullis_memory
import pytest


def test_what_is_written_is_read(permission):
    permission.write(b"hello", offset=100)
    into = bytearray(5)
    permission.read_into(into, offset=100)
    assert into == b"hello"
    assert permission.read_bytes(5, 100) == b"hello"
    assert len(permission) == permission.length == 1 << 20
    assert permission.rights == "rwa"
    assert not permission.shared


def test_long_transfers_go_in_pieces_and_arrive_whole(permission):
    pattern = bytes(n * 7 % 251 for n in range(1 << 20))
    permission.write(pattern)
    assert permission.read_bytes() == pattern
    into = bytearray((1 << 20) - 12345)
    permission.read_into(into, 12345)
    assert into == pattern[12345:]


def test_a_small_arena_carries_long_transfers(node):
    with node.connect(arena="512KiB") as session, session.allocate("1MiB", lifetime=10) as permission:
        pattern = bytes(n * 11 % 253 for n in range(1 << 20))
        permission.write(pattern)
        assert permission.read_bytes() == pattern


def test_a_block_ends_its_permission(session):
    with session.allocate(64) as permission:
        assert permission.is_live
    assert not permission.is_live
    assert permission.remaining == 0
    with pytest.raises(portcullis_memory.CallerError, match="permission was closed") as caught:
        permission.read_bytes()
    assert caught.value.name == "closed"


def test_a_block_whose_permission_is_over_already_ends_quietly(session):
    with session.allocate(64, lifetime=0.02) as permission:
        while permission.remaining > 0:
            time.sleep(0.001)
        with pytest.raises(portcullis_memory.ExpiredError) as caught:
            permission.read_bytes()
        assert caught.value.is_retryable
    with session.allocate(64) as permission:
        permission.revoke()
    with session.allocate(64) as permission:
        session.close()
    assert not permission.is_live


def test_the_exception_of_a_block_comes_out_of_it(session):
    with pytest.raises(ZeroDivisionError), session.allocate(64):
        raise ZeroDivisionError


def test_a_kept_object_outlives_its_permission_and_is_freed(session):
    with session.allocate(64, keep=True) as permission:
        permission.write(b"kept")
        ref = permission.object
    with session.acquire(ref) as permission:
        assert permission.shared
        assert permission.rights == "r"
        assert permission.read_bytes(4) == b"kept"
    session.free(ref)
    with pytest.raises(portcullis_memory.ObjectGoneError):
        session.acquire(ref)


def test_what_was_written_down_can_be_kept_later(session):
    with session.allocate(64) as permission:
        session.keep(permission.object)
    session.acquire(permission.object).revoke(free=True)
    with pytest.raises(portcullis_memory.EndedError):
        session.keep(permission.object, False)


def test_a_permission_over_a_part_covers_that_part(session):
    with session.allocate(64, shared=True) as whole:
        whole.write(bytes(range(64)))
        with session.acquire(whole.object, part=(16, 8)) as part:
            assert (part.offset, part.length) == (16, 8)
            assert part.read_bytes() == bytes(range(16, 24))
            with pytest.raises(portcullis_memory.CallerError, match="outside") as caught:
                part.read_bytes(9)
            assert caught.value.name == "outside-range"


def test_who_holds_alone_keeps_others_out(session, node):
    with session.allocate(64) as held, node.connect() as other:
        with pytest.raises(portcullis_memory.ConflictError) as caught:
            other.acquire(held.object, wait=0.01)
        assert caught.value.is_retryable
        assert isinstance(caught.value, portcullis_memory.TenantError)


def test_a_permission_only_gives_its_rights(session):
    with session.allocate(64, rights="r") as permission:
        for forbidden in (lambda: permission.write(b"x"), lambda: permission.fetch_and_add(0, 1)):
            with pytest.raises(portcullis_memory.CallerError) as caught:
                forbidden()
            assert caught.value.name == "wrong-right"


def test_atomics_return_the_word_before(permission):
    permission.write(bytes(16))
    assert permission.fetch_and_add(8, 5) == 0
    assert permission.compare_and_swap(8, 5, 2**64 - 1) == 5
    assert permission.fetch_and_add(8, 3) == 2**64 - 1
    assert permission.compare_and_swap(8, 0, 9) == 2
    assert permission.read_bytes(8, 8) == (2).to_bytes(8, "little")
    with pytest.raises(portcullis_memory.CallerError) as caught:
        permission.fetch_and_add(4, 1)
    assert caught.value.name == "misaligned"


def test_a_permission_that_is_extended_lives_on(session):
    with session.allocate(64, lifetime=0.5) as permission:
        permission.extend(9)
        assert 8 < permission.remaining <= 9
        assert permission.deadline == pytest.approx(time.monotonic() + permission.remaining, abs=0.5)
        with pytest.raises(portcullis_memory.CallerError) as caught:
            permission.extend(1)
        assert caught.value.name == "lives-longer"


def test_a_keeper_extends_until_it_is_closed(session):
    with session.allocate(64, lifetime=0.2) as permission:
        first = permission.deadline
        with permission.keep(by=0.2) as keeper:
            until = time.monotonic() + 10
            while permission.deadline < first + 0.1 and time.monotonic() < until:
                time.sleep(0.005)
            assert keeper.is_kept
            permission.write(b"alive")
        assert not keeper.is_kept
        assert permission.deadline > first


def test_a_forgotten_permission_is_revoked_with_the_next_call(session, node):
    session.allocate(64, lifetime=10, keep=True).release()
    held = session.allocate(64, lifetime=10, keep=True)
    ref = held.object
    del held
    session.allocate(64).revoke()
    with node.connect() as other, other.acquire(ref, rights="rw", wait=5) as permission:
        permission.write(b"mine")


def test_references_pickle_print_compare_and_are_24_bytes(session):
    with session.allocate(64) as permission:
        ref = permission.object
    again = portcullis_memory.ObjectRef.from_bytes(bytes(ref))
    assert len(bytes(ref)) == 24
    assert again == ref == portcullis_memory.ObjectRef(str(ref)) == pickle.loads(pickle.dumps(ref))
    assert hash(again) == hash(ref) and {ref: 1}[again] == 1
    other = portcullis_memory.ObjectRef("00c0ffee00c0ffee-100000210020-2a")
    assert other != ref and (other < ref) != (ref < other) and sorted([ref, other]) == sorted([other, ref])
    assert eval(repr(other), {"ObjectRef": portcullis_memory.ObjectRef}) == other
    assert ref != "text"
    for wrong in (lambda: portcullis_memory.ObjectRef("no"), lambda: portcullis_memory.ObjectRef.from_bytes(b"short")):
        with pytest.raises(portcullis_memory.CallerError):
            wrong()
    with pytest.raises(TypeError):
        portcullis_memory.ObjectRef(5)


def test_names_lead_to_objects_and_tenants_share_them(node):
    with node.connect("red") as red, node.connect("blue") as blue:
        with red.allocate(64, keep=True, shared=True) as permission:
            permission.write(b"shared")
            ref = permission.object
        red.publish("thing", ref)
        assert red.lookup("thing") == portcullis_memory.Entry("thing", ref, 64, "rwa")
        assert [entry.name for entry in red.names()] == ["thing"]
        with pytest.raises(portcullis_memory.ObjectGoneError) as caught:
            blue.lookup("thing", tenant="red")
        assert caught.value.name == "no-such-name"
        red.share("thing", "blue")
        entry = blue.lookup("thing", tenant="red")
        assert entry.rights == "r" and [it.name for it in blue.names("red")] == ["thing"]
        with blue.acquire(entry.object) as permission:
            assert permission.read_bytes(6) == b"shared"
        red.unshare("thing", "blue")
        red.unpublish("thing")
        assert red.names() == []
        with pytest.raises(portcullis_memory.CallerError):
            red.publish("\n", ref)
        red.free(ref)


def test_a_member_is_shared_with_its_head(node):
    with node.connect("red") as red, node.connect("blue") as blue:
        refs = []
        for _ in range(2):
            with red.allocate(64, keep=True, shared=True) as permission:
                refs.append(permission.object)
        head, member = refs
        red.publish("head", head)
        red.share("head", "blue")
        red.include(member, head)
        with blue.acquire(member) as permission:
            assert permission.length == 64
        red.free(head)
        with pytest.raises(portcullis_memory.ObjectGoneError):
            red.acquire(member)


def test_times_and_sizes_are_read_as_people_write_them(session):
    with session.allocate("4KiB", lifetime=1, keep=0.5) as permission:
        assert permission.length == 4096
        assert 0.5 < permission.remaining <= 1
    session.free(permission.object)
    for wrong in (
        lambda: session.allocate("4 parsecs"),
        lambda: session.allocate(-1),
        lambda: session.allocate(2**64),
        lambda: session.allocate(64, lifetime=-1),
        lambda: session.allocate(64, lifetime=math.nan),
        lambda: session.allocate(64, lifetime=math.inf),
        lambda: session.allocate(64, rights="rwx"),
        lambda: session.allocate(0),
        lambda: session.allocate(64, keep=math.inf),  # this node keeps nothing for ever
    ):
        with pytest.raises(portcullis_memory.CallerError):
            wrong()
    for wrong in (
        lambda: session.allocate(1.5),
        lambda: session.allocate(None),
        lambda: session.allocate(64, lifetime="1s"),
        lambda: session.allocate(64, rights=3),
        lambda: session.acquire("ref"),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_values_that_are_printed_say_what_they_are(session, permission, node):
    assert repr(session) == f"<portcullis_memory.Session number {session.number}>"
    assert "rwa" in repr(permission) and "s left" in repr(permission)
    assert node.address in repr(node)
    permission.revoke()
    assert "ended" in repr(permission)
    session.close()
    assert "closed" in repr(session)


def test_a_free_grants_nothing_more_and_can_end_the_holders_or_wait_for_them(node):
    with node.connect("red") as one, node.connect("red") as two:
        with one.allocate(64, keep=True, shared=True) as permission:
            ref = permission.object
        held = two.acquire(ref, shared=True, lifetime=0.05)
        one.free(ref)
        with pytest.raises(portcullis_memory.ObjectGoneError):
            two.acquire(ref)
        assert len(held.read(8)) == 8
        with pytest.raises(ValueError, match="one of them"):
            one.free(ref, now=True, wait=True)
        one.free(ref, now=True)
        with pytest.raises(portcullis_memory.EndedError):
            held.read(8)
        with one.allocate(64, keep=True, shared=True) as permission:
            ref = permission.object
        two.acquire(ref, shared=True, lifetime=0.05)
        one.free(ref, wait=True)
