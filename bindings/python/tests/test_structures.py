"""Tables and queues."""

from __future__ import annotations

import threading
import time
from collections.abc import MutableMapping

import portcullis_memory
import pytest


def test_a_table_is_a_mapping(session):
    with session.create_table() as table:
        assert isinstance(table, MutableMapping) and bool(table)
        table[b"one"] = b"1"
        table.update({b"two": b"2", b"three": b"3"})
        assert table[b"one"] == b"1" and table.get(b"none") is None
        assert b"two" in table and b"none" not in table
        assert len(table) == 3
        assert sorted(table) == sorted(table.keys()) == [b"one", b"three", b"two"]
        assert dict(table) == dict(table.items()) == {b"one": b"1", b"two": b"2", b"three": b"3"}
        assert sorted(table.values()) == [b"1", b"2", b"3"]
        del table[b"two"]
        assert table.pop(b"three") == b"3" and table.setdefault(b"one", b"x") == b"1"
        for missing in (lambda: table[b"two"], lambda: table.pop(b"two"), lambda: table.__delitem__(b"two")):
            with pytest.raises(KeyError, match="two"):
                missing()
        table.clear()
        assert list(table) == []


def test_keys_and_values_are_any_buffers(session):
    with session.create_table() as table:
        table[bytearray(b"key")] = memoryview(b"value")
        assert table[memoryview(b"key")] == b"value"
        with pytest.raises(TypeError):
            table["text"] = b"value"
        with pytest.raises(TypeError):
            "text" in table
        with pytest.raises(portcullis_memory.CallerError) as caught:
            table[b"key"] = bytes((1 << 20) + 1)
        assert caught.value.name == "value-too-long"


def test_changes_under_a_condition_tell_whether_it_held(session):
    with session.create_table() as table:
        assert table.insert(b"key", b"1") and not table.insert(b"key", b"2")
        assert table.replace(b"key", b"2") and not table.replace(b"none", b"2")
        assert table.compare_and_set(b"key", b"2", b"3") and not table.compare_and_set(b"key", b"2", b"4")
        assert table[b"key"] == b"3"
        assert table.remove(b"key") and not table.remove(b"key")


def test_many_keys_are_looked_up_at_once(session):
    with session.create_table() as table:
        for n in range(100):
            table[b"%d" % n] = b"%d" % (n * n)
        keys = [b"%d" % n for n in range(200)]
        assert table.get_many(keys) == [b"%d" % (n * n) for n in range(100)] + [None] * 100
        assert table.get_many(iter([])) == []


def test_a_key_with_a_time_to_live_goes_by_itself(session):
    with session.create_table() as table:
        table.set(b"key", b"value", ttl=0.1)
        assert table[b"key"] == b"value"
        until = time.monotonic() + 10
        while b"key" in table:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert table.statistics()["keys"] == 1
        while (removed := table.remove_expired()) == 0:
            assert time.monotonic() < until
        assert removed == 1 and table.statistics()["keys"] == 0


def test_a_table_is_found_by_its_name_and_by_its_head(session, node):
    with session.create_table("cities", groups=8, lease=0.1, seed=7, depth_max=4, keep=True, grain="block") as table:
        table[b"Bern"] = b"CH"
        with node.connect() as other, other.open_table("cities", read_only=True) as reader:
            assert reader[b"Bern"] == b"CH" and reader == table and hash(reader) == hash(table)
            with pytest.raises(portcullis_memory.CallerError) as caught:
                reader[b"Bern"] = b"D"
            assert caught.value.name == "read-only-table"
        with session.open_table(table.head) as again:
            assert list(again) == [b"Bern"] and str(table.head) in repr(again)
        assert table.statistics()["keys"] == 1
        assert set(table.sweep()) == {"blocks", "pending", "subtables", "unfinished", "extents", "splits"}
        table.destroy("cities")
        assert table.closed
    with pytest.raises(portcullis_memory.ObjectGoneError):
        session.open_table("cities")


def test_options_that_there_are_not_are_refused(session):
    for make in (session.create_table, session.create_queue):
        with pytest.raises(TypeError, match="no option.*lease"):
            make(colour="red")
    for options in ({"grain": "coarse"}, {"blocks": "stone"}, {"groups": 0}, {"lease": 100}):
        with pytest.raises(portcullis_memory.CallerError):
            session.create_table(**options)
    for options in ({"cell_bytes": 7}, {"cell_bytes": "1TiB"}, {"segment_slots": 1}):
        with pytest.raises(portcullis_memory.CallerError):
            session.create_queue(**options)


def test_a_structure_that_is_not_kept_is_refused_with_what_to_use_instead(session):
    for make, name in ((session.create_queue, "queue-option"), (session.create_table, "table-option")):
        with pytest.raises(portcullis_memory.CallerError, match="always kept.*longer than its lease.*destroy") as caught:
            make(keep=False)
        assert caught.value.name == name
        for keep in (True, 5):
            made = make(keep=keep)
            made.destroy()


def test_entries_come_out_of_a_queue_as_they_went_in(session, node):
    with session.create_queue("jobs", cell_bytes="128", keep=True) as queue, node.connect() as other:
        for n in range(10):
            queue.push(b"%d" % n)
        with other.open_queue("jobs") as consumer:
            assert consumer.pop() == b"0"
            assert queue.statistics()["slots"] == 9
            popped: list[bytes] = []
            while some := consumer.pop_many(3):
                assert len(some) <= 3
                popped += some
            assert popped == [b"%d" % n for n in range(1, 10)]
            assert consumer.pop(timeout=0) is None and consumer.pop_many(5) == []
            before = time.monotonic()
            assert consumer.pop(timeout=0.12) is None
            assert 0.1 < time.monotonic() - before < 5
        with session.open_queue(queue.head) as again:
            again.push(bytearray(b"last"))
        queue.end()
        queue.sweep()
        assert queue.statistics()["is_ended"]
        with pytest.raises(portcullis_memory.Error) as caught:
            queue.push(b"late")
        assert caught.value.name == "queue-closed"
        assert queue.pop() == b"last"
        with pytest.raises(portcullis_memory.Error) as caught:
            queue.pop()
        assert caught.value.name == "queue-closed"


def test_a_consumer_waits_for_an_entry(session, node):
    with session.create_queue() as queue, node.connect() as other, other.open_queue(queue.head) as producer:
        thread = threading.Timer(0.15, producer.push, (b"late",))
        thread.start()
        assert queue.pop() == b"late"
        thread.join()
