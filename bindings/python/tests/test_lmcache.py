"""The adapter for LMCache: against the interface by itself, and under LMCache's own class if LMCache is installed."""

import ctypes
import importlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time

import portcullis_memory
import pytest
from portcullis_memory.lmcache import Adapter

BLOCK = 64 << 10
WAIT = 20.0  # Seconds. No step of these tests takes this long unless it hangs.


def block_of(text, length=BLOCK):
    """A block that repeats the text, so that each part of it shows to which block it belongs."""
    word = f"<{text}>".encode()
    return (word * (length // len(word) + 1))[:length]


class Caller:
    """Calls an adapter as LMCache does, and waits for the end of each batch by the descriptor."""

    def __init__(self, adapter):
        self.adapter = adapter
        self.ended = {}

    def wait(self, number):
        until = time.monotonic() + WAIT
        while number not in self.ended:
            left = until - time.monotonic()
            assert left > 0, f"batch {number} does not end"
            if select.select([self.adapter.event_fd()], [], [], left)[0]:
                self.ended.update((completion[0], completion[1:]) for completion in self.adapter.drain_completions())
        return self.ended.pop(number)

    def set(self, blocks):
        return self.wait(self.adapter.submit_batch_set(list(blocks), list(blocks.values())))[0]

    def exists(self, *keys):
        return self.wait(self.adapter.submit_batch_exists(list(keys)))[2]

    def delete(self, *keys):
        return self.wait(self.adapter.submit_batch_delete(list(keys)))[2]

    def get(self, *keys, length=BLOCK):
        """Returns the block of each key, or None for a miss. The buffers of the call are in ``buffers``."""
        self.buffers = [bytearray(length) for _ in keys]
        hits = self.wait(self.adapter.submit_batch_get(list(keys), self.buffers))[2]
        return [bytes(buffer) if hit else None for hit, buffer in zip(hits, self.buffers)]


@pytest.fixture
def node():
    with portcullis_memory.Node(memory="64MiB") as node:
        yield node


@pytest.fixture
def caller(node):
    with Adapter(node.address) as adapter:
        yield Caller(adapter)


def owner_of(node):
    """Opens a session for another program of the adapter's tenant."""
    return portcullis_memory.connect(node.address, arena="4MiB")


def object_of(session, key):
    """Returns the object that contains a key's block: its reference is the end of the table's entry."""
    entry = session.open_table("lmcache")[key.encode()]
    return portcullis_memory.ObjectRef.from_bytes(entry[24:])


class Stranger:
    """Another tenant, which fills all memory that it can allocate with its own bytes."""

    SECRET = b"<the stranger's secret>"

    def __init__(self, node):
        self.session = node.connect(tenant="stranger", arena="4MiB")
        self.held = []

    def fill(self, least=BLOCK):
        """Allocates all memory of the node in pieces, down to this length. Returns the number of pieces."""
        before = len(self.held)
        for length in (max(least, 4 << 20), least):
            data = (self.SECRET * (length // len(self.SECRET) + 1))[:length]
            while True:
                try:
                    self.held.append(self.session.allocate(length, lifetime=10))
                except portcullis_memory.Error:
                    break
                self.held[-1].write(data)
        return len(self.held) - before

    def let_go(self):
        while self.held:
            self.held.pop().revoke(free=True)


# -- Stored blocks are found and loaded ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 100, 4096, BLOCK, (1 << 20) + 1])
def test_blocks_come_back(caller, length):
    blocks = {f"model@0@0@{number:08x}": block_of(f"block {number}", length) for number in range(8)}
    assert caller.set(blocks)
    assert caller.exists(*blocks) == [True] * 8
    assert caller.get(*blocks, length=length) == list(blocks.values())


def test_more_blocks_than_one_step_has(caller):
    blocks = {f"key {number}": block_of(number, 4096) for number in range(300)}
    assert caller.set(blocks)
    assert caller.exists(*blocks) == [True] * 300
    assert caller.get(*blocks, length=4096) == list(blocks.values())
    assert caller.get(*blocks, length=4096) == list(blocks.values())  # The same without leases.
    assert caller.delete(*blocks) == [True] * 300
    assert caller.exists(*blocks) == [False] * 300


def test_a_block_larger_than_the_arena(node):
    with Adapter(node.address, arena="4MiB") as adapter:
        caller = Caller(adapter)
        blocks = {"large": block_of("large", 9 << 20), "small": block_of("small", 9 << 20)}
        assert caller.set(blocks)
        assert caller.get("large", "small", length=9 << 20) == list(blocks.values())


def test_buffers_as_lmcache_has_them(caller):
    """A view of a ctypes array over memory of another object. Its format is not the plain one of bytes."""
    memory = bytearray(2 * BLOCK)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    out, back = (memoryview((ctypes.c_ubyte * BLOCK).from_address(at + offset)) for offset in (0, BLOCK))
    memory[:BLOCK] = block_of("view")
    assert caller.wait(caller.adapter.submit_batch_set(["key"], [out]))[0]
    assert caller.wait(caller.adapter.submit_batch_get(["key"], [back]))[2] == [True]
    assert memory[BLOCK:] == block_of("view")


def test_keys_of_any_kind(caller):
    keys = ["", "ä@ö", "k" * 2000, "with\0zero", "org/model-7B@0000000f@0@" + "ab" * 32 + "@salt"]
    assert caller.set({key: block_of(f"{number}") for number, key in enumerate(keys)})
    assert caller.get(*keys) == [block_of(f"{number}") for number in range(len(keys))]


def test_what_is_not_there_is_a_miss_and_what_is_there_is_not(caller):
    caller.set({"a": block_of("a"), "c": block_of("c")})
    assert caller.exists("a", "b", "c") == [True, False, True]
    assert caller.get("a", "b", "c") == [block_of("a"), None, block_of("c")]
    assert caller.adapter.statistics()["get.absent"] == 1


def test_empty_batches_end(caller):
    for submit in (caller.adapter.submit_batch_exists, caller.adapter.submit_batch_delete):
        assert caller.wait(submit([])) == (True, "", [])
    for submit in (caller.adapter.submit_batch_get, caller.adapter.submit_batch_set):
        assert caller.wait(submit([], [])) == (True, "", [])


def test_one_key_several_times_in_one_batch(caller):
    assert caller.wait(caller.adapter.submit_batch_set(["k", "k"], [block_of("k"), block_of("k")]))[0]
    assert caller.exists("k", "k") == [True, True]
    assert caller.get("k", "k", "k") == [block_of("k")] * 3


def test_the_descriptor_is_readable_while_an_end_is_untold(caller):
    descriptor = caller.adapter.event_fd()
    assert not select.select([descriptor], [], [], 0)[0]
    numbers = {caller.adapter.submit_batch_exists(["a"]) for _ in range(50)}
    told = set()
    while told != numbers:
        assert select.select([descriptor], [], [], WAIT)[0]
        told |= {completion[0] for completion in caller.adapter.drain_completions()}
    assert caller.adapter.drain_completions() == []
    assert not select.select([descriptor], [], [], 0)[0]


def test_many_threads_submit(node):
    with Adapter(node.address) as adapter:
        numbers = [[] for _ in range(4)]

        def submit(mine, name):
            for round in range(50):
                mine.append(adapter.submit_batch_set([f"{name} {round}"], [block_of(f"{name} {round}", 512)]))

        threads = [threading.Thread(target=submit, args=(mine, name)) for name, mine in enumerate(numbers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        caller = Caller(adapter)
        flat = [number for mine in numbers for number in mine]
        assert len(set(flat)) == 200
        assert all(caller.wait(number)[0] for number in flat)
        keys = [f"{name} {round}" for name in range(4) for round in range(50)]
        assert caller.get(*keys, length=512) == [block_of(key, 512) for key in keys]


def test_two_adapters_share_their_blocks(node):
    with Adapter(node.address) as one, Adapter(node.address) as other, Adapter(node.address, table="apart") as apart:
        assert Caller(one).set({"key": block_of("shared")})
        assert Caller(other).get("key") == [block_of("shared")]
        assert Caller(apart).get("key") == [None]


def test_a_key_keeps_its_first_block_and_the_second_costs_nothing(caller):
    # Each round stores 40 MiB, and the node has 64 MiB.
    blocks = {f"key {number}": block_of(number, 4 << 20) for number in range(10)}
    for _ in range(5):
        assert caller.set(blocks)
    assert caller.get(*blocks, length=4 << 20) == list(blocks.values())
    (node,) = caller.adapter.nodes()
    assert node.counters["stored"] == 10


def test_a_block_of_another_length_is_a_miss_and_is_replaced(caller):
    caller.set({"key": block_of("short", 1000)})
    assert caller.get("key", length=2000) == [None]
    assert caller.buffers == [bytearray(2000)]
    assert caller.set({"key": block_of("long", 2000)})
    assert caller.get("key", length=2000) == [block_of("long", 2000)]
    assert caller.get("key", length=1000) == [None]


def test_a_lease_of_the_old_block_does_not_answer_for_the_new_one(caller):
    caller.set({"key": block_of("short", 1000)})
    assert caller.exists("key") == [True]
    assert caller.set({"key": block_of("long", 2000)})
    assert caller.get("key", length=2000) == [block_of("long", 2000)]
    assert caller.get("key", length=1000) == [None]


def test_deletions_give_memory_back(caller):
    for round in range(8):  # Each round stores 20 MiB, and the node has 64 MiB.
        blocks = {f"{round} {number}": block_of(number, 4 << 20) for number in range(5)}
        assert caller.set(blocks)
        assert caller.delete(*blocks, "never there") == [True] * 6
    assert caller.exists("7 0") == [False]


def test_a_full_node_evicts_what_was_not_used_for_long(caller):
    for round in range(6):  # Each round stores 40 MiB, and the node has 64 MiB.
        blocks = {f"{round} {number}": block_of(f"{round} {number}", 4 << 20) for number in range(10)}
        assert caller.set(blocks)
        assert caller.get(*blocks, length=4 << 20) == list(blocks.values())
    (node,) = caller.adapter.nodes()
    assert node.counters["evicted"] >= 40


def test_a_batch_for_which_there_is_no_room_is_not_stored(node, caller, caplog):
    assert caller.set({"before": block_of("before")})
    assert caller.exists("before") == [True]  # No client evicts a block that a lookup holds.
    stranger = Stranger(node)
    assert stranger.fill() > 0
    with caplog.at_level(logging.WARNING, logger="portcullis_memory.lmcache"):
        assert not caller.set({"large": block_of("large", 8 << 20)})
    assert len(caplog.records) == 1 and ("out-of-memory" in caplog.text or "quota" in caplog.text)
    assert caller.exists("large") == [False]
    stranger.let_go()
    assert caller.set({"large": block_of("large", 8 << 20)})


def test_of_two_that_store_one_key_at_once_one_keeps_its_block(node):
    """Each adapter stores 20 MiB, and the node has 64 MiB.

    The memory that the slower one had written must be free again.
    """
    with Adapter(node.address) as one, Adapter(node.address) as other:
        callers = Caller(one), Caller(other)
        for round in range(8):
            blocks = {f"{round} {number}": block_of(number, 4 << 20) for number in range(5)}
            numbers = [caller.adapter.submit_batch_set(list(blocks), list(blocks.values())) for caller in callers]
            assert [caller.wait(number)[0] for caller, number in zip(callers, numbers)] == [True, True]
            for caller in callers:
                assert caller.get(*blocks, length=4 << 20) == list(blocks.values())
            assert callers[0].delete(*blocks) == [True] * 5


def test_nonsense_in_the_table_is_a_miss(node, caller):
    caller.set({"key": block_of("key")})
    with owner_of(node) as owner:
        table = owner.open_table("lmcache")
        good = table[b"key"]
        for entry in (b"", b"x", b"PCBLOCK2", good[:-1], good + b"x", b"X" + good[1:], good[:8] + b"\xff" * (len(good) - 8)):
            table[b"key"] = entry
            assert caller.exists("key") == [False], entry
            assert caller.get("key") == [None], entry
        table[b"key"] = b"x"
        assert caller.set({"key": block_of("new")})
        assert caller.get("key") == [block_of("new")]


# -- Blocks that end under their readers -------------------------------------------------------------------------------


def test_a_block_freed_under_a_reader_is_a_miss(node):
    with Adapter(node.address, lease=0) as adapter, owner_of(node) as owner:
        caller = Caller(adapter)
        caller.set({"key": block_of("key"), "other": block_of("other")})
        assert caller.exists("key", "other") == [True, True]
        # The key is still in the table, and leads to a block that has been freed.
        owner.free(object_of(owner, "key"))
        stranger = Stranger(node)
        assert stranger.fill() > 0
        assert caller.get("key", "other") == [None, block_of("other")]
        assert caller.buffers[0] == bytearray(BLOCK)
        assert adapter.statistics()["get.absent"] == 1
        # With leases the lookup itself reports the miss.
        with Adapter(node.address) as careful:
            assert Caller(careful).exists("key", "other") == [False, True]
        stranger.let_go()
        # A client that computes the block again can store it.
        assert caller.set({"key": block_of("again")})
        assert caller.get("key") == [block_of("again")]


@pytest.fixture
def patient(node):
    """Leases as long as the node allows, so that a slow machine does not end them during a test."""
    with Adapter(node.address, lease=10) as adapter:
        yield Caller(adapter)


def test_a_lease_keeps_a_block_from_being_freed(node, patient):
    caller = patient
    caller.set({"key": block_of("key")})
    assert caller.exists("key") == [True]
    with Adapter(node.address) as other:
        assert Caller(other).delete("key") == [True]
    stranger = Stranger(node)
    assert stranger.fill() > 0
    assert caller.get("key") == [block_of("key")]
    # The lease was for one load. When it ends, any client can allocate the memory.
    assert caller.get("key") == [None]
    assert stranger.fill() > 0
    assert caller.get("key") == [None]


def test_a_lease_for_each_lookup(node, patient):
    caller = patient
    caller.set({"key": block_of("key")})
    assert caller.exists("key") == caller.exists("key") == [True]
    with Adapter(node.address) as other:
        assert Caller(other).delete("key") == [True]
    assert [caller.get("key"), caller.get("key"), caller.get("key")] == [[block_of("key")], [block_of("key")], [None]]


def test_a_lease_that_has_ended_is_a_miss(node):
    with Adapter(node.address, lease=0.2) as adapter:
        caller = Caller(adapter)
        caller.set({"key": block_of("key")})
        assert caller.exists("key") == [True]
        with Adapter(node.address) as other:
            assert Caller(other).delete("key") == [True]
        time.sleep(0.25)  # The lease ends at its deadline.
        stranger = Stranger(node)
        assert stranger.fill() > 0
        assert caller.get("key") == [None]
        assert caller.buffers[0] == bytearray(BLOCK)


def test_leases_have_a_limit_and_the_rest_is_found_without(node):
    with Adapter(node.address, leases_max=3, lease=10) as adapter:
        caller = Caller(adapter)
        blocks = {f"key {number}": block_of(number) for number in range(8)}
        caller.set(blocks)
        assert caller.exists(*blocks) == [True] * 8
        with Adapter(node.address) as other:
            Caller(other).delete(*blocks)
        assert [block is not None for block in caller.get(*blocks)].count(True) == 3


def test_nothing_of_a_stranger_is_ever_loaded(node):
    """Blocks are freed and their memory is given away while they are loaded: each load is right, or a miss."""
    names = [f"key {number}" for number in range(16)]
    stop = threading.Event()

    def recycle():
        stranger = Stranger(node)
        with Adapter(node.address) as writer:
            own = Caller(writer)
            while not stop.is_set():
                own.set({name: block_of(name, 1 << 20) for name in names})
                own.delete(*names)
                stranger.fill(1 << 20)
                stranger.let_go()

    thread = threading.Thread(target=recycle)
    thread.start()
    hits = misses = 0
    try:
        with Adapter(node.address, lease=0) as late, Adapter(node.address, lease=0.02) as leased:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                for caller in (Caller(late), Caller(leased)):
                    caller.exists(*names)
                    for name, block in zip(names, caller.get(*names, length=1 << 20)):
                        if block is None:
                            misses += 1
                        else:
                            hits += 1
                            assert block == block_of(name, 1 << 20)
                    assert not any(Stranger.SECRET in buffer for buffer in caller.buffers)
    finally:
        stop.set()
        thread.join()
    assert misses > 0


# -- Ends --------------------------------------------------------------------------------------------------------------


def until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_node_that_goes_is_misses_until_there_is_one_again(tmp_path, caplog):
    socket = tmp_path / "socket"
    first = portcullis_memory.Node(memory="64MiB", socket=socket)
    with caplog.at_level(logging.INFO, logger="portcullis_memory.lmcache"), Adapter(first.address) as adapter:
        caller = Caller(adapter)
        assert caller.set({"key": block_of("key")})
        assert caller.exists("key") == [True]
        first.stop()
        assert caller.get("key", "other") == [None, None]
        assert caller.exists("key") == [False]
        assert not caller.set({"key": block_of("key")})
        until(lambda: not adapter.is_connected)
        assert caller.delete("key") == [False]  # A block that was only cut off may come back.
        until(lambda: "all blocks are misses" in caplog.text)
        with portcullis_memory.Node(memory="64MiB", socket=socket):
            until(lambda: caller.set({"key": block_of("new")}))
            assert caller.get("key") == [block_of("new")]
            until(lambda: "is back" in caplog.text)
            assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


def test_a_node_that_is_not_there_is_misses_until_it_is(tmp_path, caplog):
    socket = tmp_path / "socket"
    with Adapter(f"shm:{socket}") as adapter:
        caller = Caller(adapter)
        assert caller.exists("key") == [False]
        assert caller.get("key") == [None]
        assert not caller.set({"key": block_of("key")})
        assert caller.delete("key") == [False]
        assert not adapter.is_connected
        assert "all blocks are misses" in caplog.text
        assert adapter.statistics()["get.no-node"] == 1
        with portcullis_memory.Node(memory="64MiB", socket=socket):
            until(lambda: caller.set({"key": block_of("key")}))
            assert adapter.is_connected
            assert caller.get("key") == [block_of("key")]


def test_an_adapter_that_has_reached_no_node_can_be_closed():
    adapter = Adapter("shm:/nobody/listens.sock")
    adapter.close()
    adapter.close()
    assert adapter.nodes() == []


def test_nodes_that_come_later_and_do_not_fit_are_told_in_the_log(tmp_path, caplog):
    socket = tmp_path / "socket"
    with Adapter(f"shm:{socket}", lease=11) as adapter, portcullis_memory.Node(memory="64MiB", socket=socket):
        until(lambda: "will not be tried again" in caplog.text)
        assert Caller(adapter).exists("key") == [False]


def test_a_node_of_several_that_goes_costs_no_block(caplog):
    nodes = [portcullis_memory.Node(memory="64MiB") for _ in range(3)]
    with Adapter([node.address for node in nodes], copies=2, within=5.0) as adapter:
        caller = Caller(adapter)
        blocks = {f"key {number}": block_of(number) for number in range(60)}
        assert caller.set(blocks)
        assert caller.exists(*blocks) == [True] * 60
        nodes[1].stop()
        assert caller.get(*blocks) == list(blocks.values())
        assert caller.set({"late": block_of("late")})
        assert caller.exists(*blocks) == [True] * 60
        # The node and its copies are gone.
        until(lambda: caller.delete(*blocks) == [True] * 60)
        assert caller.exists(*blocks) == [False] * 60
        until(lambda: "blocks that only it has are misses" in caplog.text)
        assert [node.lost is None for node in adapter.nodes()].count(True) == 2
    for node in nodes:
        node.stop()


def test_close_with_work_under_way_leaves_the_buffers_alone(node):
    adapter = Adapter(node.address)
    blocks = {f"key {number}": block_of(number, 1 << 20) for number in range(24)}
    assert Caller(adapter).set(blocks)
    gets = [[bytearray(1 << 20) for _ in blocks] for _ in range(8)]
    buffers = [buffer for get in gets for buffer in get]
    for get in gets:
        adapter.submit_batch_get(list(blocks), get)
        adapter.submit_batch_set([f"new {key}" for key in blocks], list(blocks.values()))
        adapter.submit_batch_delete(["key 0"])
    adapter.close()
    for buffer in buffers:
        buffer[:] = b"\x55" * len(buffer)
    time.sleep(0.1)  # Time for late writes, which must not happen.
    assert all(buffer.count(0x55) == len(buffer) for buffer in buffers)
    # Each batch has ended. Some of the stores had no room beside the others.
    assert len(adapter.drain_completions()) == 24
    adapter.close()
    # A controller that has not noticed the end yet gets no exception.
    adapter.submit_batch_exists(["key 1"])
    assert adapter.drain_completions()[0][1:] == (False, "the adapter is closed", [False])


def test_what_is_under_way_at_the_end_is_stored(node):
    with Adapter(node.address) as witness:
        adapter = Adapter(node.address)
        blocks = {f"key {number}": block_of(number, 4096) for number in range(1000)}
        number = adapter.submit_batch_set(list(blocks), list(blocks.values()))
        adapter.submit_batch_exists(["key 0"])
        adapter.close()
        assert dict(completion[:2] for completion in adapter.drain_completions())[number]
        assert Caller(witness).exists(*blocks) == [True] * 1000


def test_a_process_that_is_killed_leaves_whole_blocks(node):
    program = """if True:
        import select, sys
        from portcullis_memory.lmcache import Adapter
        adapter = Adapter(sys.argv[1])
        number = 0
        while True:
            name = f"key {number % 200}"
            block = (name.encode() * 40000)[:65536]
            adapter.submit_batch_set([name], [block])
            adapter.submit_batch_delete([f"key {(number - 100) % 200}"])
            ended = []
            while len(ended) < 2:
                select.select([adapter.event_fd()], [], [])
                ended += adapter.drain_completions()
            print(number, flush=True)
            number += 1
    """
    with Adapter(node.address) as witness:
        caller = Caller(witness)
        child = subprocess.Popen([sys.executable, "-c", program, node.address], stdout=subprocess.PIPE, text=True)
        for _ in range(150):
            assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        names = [f"key {number}" for number in range(200)]
        found = caller.get(*names)
        assert any(found)
        for name, block in zip(names, found):
            assert block is None or block == (name.encode() * 40000)[:65536]
        assert caller.set({name: (name.encode() * 40000)[:65536] for name in names})
        assert caller.exists(*names) == [True] * 200


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_after_a_fork_is_told(caller):
    child = os.fork()
    if not child:
        try:
            caller.adapter.submit_batch_exists(["key"])
        except RuntimeError:
            caller.adapter.close()  # Does not wait for the thread, which the child does not have.
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert caller.exists("key") == [False]


# -- Parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "error", "about"),
    [
        ({"nodes": 7}, portcullis_memory.CallerError, "nodes"),
        ({"nodes": ""}, portcullis_memory.CallerError, "address"),
        ({"nodes": []}, portcullis_memory.CallerError, "no node is named"),
        ({"nodes": "name:"}, portcullis_memory.CallerError, "name"),
        ({"copies": 0}, portcullis_memory.CallerError, "copies"),
        ({"copies": "two"}, TypeError, "copies"),
        ({"table": b"x"}, TypeError, "table"),
        ({"table": ""}, portcullis_memory.CallerError, "name"),
        ({"lease": "long"}, TypeError, "lease"),
        ({"lease": -1}, ValueError, "time"),
        ({"lease": float("nan")}, ValueError, "time"),
        ({"leases_max": 1.5}, TypeError, "leases_max"),
        ({"leases_max": -1}, OverflowError, "negative"),
        ({"arena": "much"}, ValueError, "much"),
        ({"arena": 0}, ValueError, "arena"),
        ({"arena": 1.5}, TypeError, "arena"),
        ({"keep": False}, portcullis_memory.CallerError, "keep"),
        ({"tenant": "red"}, portcullis_memory.CallerError, "certificates"),
        ({"tenant": "red", "certificates": "/nowhere"}, portcullis_memory.MachineError, "nowhere"),
        ({"hosts": "x"}, TypeError, "hosts"),
        ({"nodes": "carrier-pigeon:coop"}, portcullis_memory.CallerError, "carrier-pigeon"),
        ({"lease": 11}, portcullis_memory.CallerError, "lifetime"),
    ],
)
def test_parameters_that_make_no_sense(node, caller, parameters, error, about):
    assert caller.set({"the table is there": block_of("the table is there")})
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=about):
        Adapter(**{"nodes": node.address, **parameters})
    # The node is in this process, too, and closes its end of a session when it notices the session's end.
    until = time.monotonic() + WAIT
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_buffers_that_cannot_be_used(caller):
    with pytest.raises(ValueError, match="2 keys and 1 buffers"):
        caller.adapter.submit_batch_get(["a", "b"], [bytearray(8)])
    with pytest.raises(ValueError, match="read-only"):
        caller.adapter.submit_batch_get(["a"], [bytes(8)])
    with pytest.raises(ValueError, match="one after another"):
        caller.adapter.submit_batch_set(["a"], [memoryview(bytearray(8))[::2]])
    with pytest.raises(TypeError):
        caller.adapter.submit_batch_set(["a"], [7])
    assert caller.exists("a") == [False]


# -- Under LMCache's own class -----------------------------------------------------------------------------------------

# Warnings of LMCache and torch are not errors of this package.
of_lmcache = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def lmcache():
    """The parts of LMCache that these tests need."""
    parts = {}
    for name in (
        "torch",
        "lmcache.v1.distributed.api",
        "lmcache.v1.distributed.config",
        "lmcache.v1.distributed.l2_adapters.factory",
        "lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter",
        "lmcache.v1.distributed.storage_manager",
        "lmcache.v1.memory_management",
    ):
        try:
            parts[name.removeprefix("lmcache.v1.").replace(".", "_")] = importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"LMCache cannot be used here: {name}: {error} (scripts/engines sets it up in an environment of its own)")
    return parts


class Engine:
    """Calls LMCache's adapter class as its controllers do: three descriptors, tasks, bitmaps."""

    def __init__(self, lmcache, adapter):
        self.lmcache = lmcache
        self.adapter = adapter

    def key(self, number, salt=""):
        hash = number.to_bytes(32, "big")
        return self.lmcache["distributed_api"].ObjectKey(chunk_hash=hash, model_name="org/model-7B", kv_rank=3, cache_salt=salt)

    def block(self, data):
        torch, memory = self.lmcache["torch"], self.lmcache["memory_management"]
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        about = memory.MemoryObjMetadata(
            shape=tensor.shape, dtype=tensor.dtype, address=0, phy_size=len(data), ref_count=1, fmt=memory.MemoryFormat.BINARY
        )
        return memory.TensorMemoryObj(tensor, about, parent_allocator=None)

    def wait(self, descriptor, result):
        while True:
            assert select.select([descriptor], [], [], WAIT)[0]
            os.eventfd_read(descriptor)
            outcome = result()
            if outcome:
                return outcome

    def store(self, blocks):
        objects = [self.block(data) for data in blocks.values()]  # The adapter's views do not keep them alive.
        task = self.adapter.submit_store_task(list(blocks), objects)
        ended = self.wait(self.adapter.get_store_event_fd(), self.adapter.pop_completed_store_tasks)
        return ended[task].is_successful()

    def look_up(self, *keys):
        task = self.adapter.submit_lookup_and_lock_task(list(keys), {})
        descriptor = self.adapter.get_lookup_and_lock_event_fd()
        found = self.wait(descriptor, lambda: self.adapter.query_lookup_and_lock_result(task))
        return [found.test(index) for index in range(len(keys))]

    def load(self, *keys, length=BLOCK):
        blocks = [self.block(bytes(length)) for _ in keys]
        task = self.adapter.submit_load_task(list(keys), blocks)
        loaded = self.wait(self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task))
        self.adapter.submit_unlock(list(keys))
        return [bytes(block.byte_array) if loaded.test(index) else None for index, block in enumerate(blocks)]


@pytest.fixture
def engine(lmcache, node):
    plugin = lmcache["distributed_l2_adapters_native_plugin_l2_adapter"]
    config = plugin.NativePluginL2AdapterConfig.from_dict(
        {
            "type": "native_plugin",
            "module_path": "portcullis_memory.lmcache",
            "class_name": "Adapter",
            "adapter_params": {"nodes": [node.address], "lease": 10},
            "max_capacity_gb": 0.0625,
        }
    )
    adapter = lmcache["distributed_l2_adapters_factory"].create_l2_adapter_from_registry(config)
    yield Engine(lmcache, adapter)
    adapter.close()


@of_lmcache
def test_lmcache_stores_looks_up_loads_and_deletes(engine):
    blocks = {engine.key(number, salt): block_of(f"{number}{salt}") for number in range(200) for salt in ("", "user")}
    absent = engine.key(1000)
    assert engine.store(blocks)
    assert engine.adapter.get_usage().total_bytes_used == 400 * BLOCK
    assert engine.look_up(*blocks, absent) == [True] * 400 + [False]
    assert engine.load(*blocks, absent) == [*blocks.values(), None]
    some = list(blocks)[:100]
    engine.adapter.delete(some)
    assert engine.adapter.get_usage().total_bytes_used == 300 * BLOCK
    assert engine.look_up(*blocks) == [False] * 100 + [True] * 300
    assert engine.load(*some) == [None] * 100


@of_lmcache
def test_lmcache_locks_are_leases(engine, node):
    key = engine.key(1)
    assert engine.store({key: block_of("locked")})
    assert engine.look_up(key) == [True]
    with Adapter(node.address) as other, owner_of(node) as owner:
        assert Caller(other).delete(*(name.decode() for name in owner.open_table("lmcache"))) == [True]
    stranger = Stranger(node)
    assert stranger.fill() > 0
    assert engine.load(key) == [block_of("locked")]
    assert engine.load(key) == [None]


@of_lmcache
def test_lmcache_gets_a_miss_for_a_locked_block_that_it_has_deleted_itself(engine, node):
    key = engine.key(1)
    assert engine.store({key: block_of("locked")})
    assert engine.look_up(key) == [True]
    engine.adapter.delete([key])
    stranger = Stranger(node)
    assert stranger.fill() > 0
    assert engine.load(key) == [None]


@of_lmcache
def test_lmcache_gets_a_miss_for_a_block_that_was_freed(engine, node):
    key, other = engine.key(1), engine.key(2)
    assert engine.store({key: block_of("one"), other: block_of("two")})
    with owner_of(node) as owner:
        table = owner.open_table("lmcache")
        for name in list(table):
            if name.endswith(key.chunk_hash.hex().encode()):
                owner.free(portcullis_memory.ObjectRef.from_bytes(table[name][24:]))
    stranger = Stranger(node)
    assert stranger.fill() > 0
    assert engine.load(key, other) == [None, block_of("two")]
    assert engine.look_up(key, other) == [False, True]


@of_lmcache
def test_lmcache_goes_on_without_the_node(engine, node):
    key = engine.key(1)
    assert engine.store({key: block_of("one")})
    node.stop()
    assert engine.look_up(key) == [False]
    assert engine.load(key) == [None]
    assert not engine.store({key: block_of("one")})
    assert engine.adapter.report_status()["is_healthy"]


@pytest.fixture
def manager(lmcache, node):
    """LMCache's storage manager with all its controllers, as its server has it. L2 has a capacity of 32 MiB."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../../../docs/examples/lmcache.json")) as file:
        spec = json.load(file)
    spec["adapter_params"] = {"nodes": [node.address]}
    spec["max_capacity_gb"] = 1 / 32
    arguments = ["--l1-size-gb", "0.25", "--no-l1-use-lazy", "--eviction-policy", "LRU", "--l2-adapter", json.dumps(spec)]
    config = lmcache["distributed_config"].parse_args(arguments)
    manager = lmcache["distributed_storage_manager"].StorageManager(config)
    yield Manager(lmcache, manager)
    manager.close()


class Manager:
    """Uses LMCache's storage manager as an engine's worker does. A block has 256 KiB."""

    LENGTH = 256 << 10

    def __init__(self, lmcache, manager):
        self.api, self.torch, self.manager = lmcache["distributed_api"], lmcache["torch"], manager
        self.layout = self.api.MemoryLayoutDesc(shapes=[self.torch.Size([self.LENGTH])], dtypes=[self.torch.uint8])
        (_, self.adapter), = manager.l2_adapters()

    def keys(self, first, count):
        numbers = range(first, first + count)
        return [self.api.ObjectKey(chunk_hash=n.to_bytes(32, "big"), model_name="org/model-7B", kv_rank=0) for n in numbers]

    def write(self, keys):
        blocks = self.manager.reserve_write(keys, self.layout)
        assert len(blocks) == len(keys)
        for key, block in blocks.items():
            data = block_of(key.chunk_hash.hex(), self.LENGTH)
            block.tensor.copy_(self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8))
        self.manager.finish_write(keys)

    def leave_l1(self, keys):
        """Removes blocks from L1, which contains no other blocks. A controller may still have some of them locked."""

        def is_empty():
            self.manager.delete_l1_keys(keys)
            return not self.manager.report_status()["l1_manager"]["total_object_count"]

        self.until(is_empty)

    def until(self, condition):
        end = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def prefetch(self, keys):
        """Returns the number of blocks that came from L2. These are compared, and removed from L1 again."""
        group = self.api.GroupedObjectKeys(keys, 0, self.layout)
        task = self.manager.submit_prefetch_task(self.api.PrefetchTaskSpec([group]))
        assert self.manager.wait_prefetch_status(task, WAIT)
        loaded = self.manager.query_prefetch_status(task).l2_hit_count
        hits = keys[:loaded]
        if hits:
            with self.manager.read_prefetched_results(hits) as blocks:
                for key, block in zip(hits, blocks):
                    assert bytes(block.byte_array) == block_of(key.chunk_hash.hex(), self.LENGTH)
            self.manager.finish_read_prefetched(hits)
            self.leave_l1(hits)
        return loaded

    def used(self):
        return self.adapter.get_usage().total_bytes_used


@of_lmcache
def test_lmcache_controllers_store_and_prefetch(manager, node):
    keys = manager.keys(0, 32)
    manager.write(keys)
    manager.until(lambda: manager.used() == 32 * Manager.LENGTH)
    manager.leave_l1(keys)
    assert manager.prefetch(keys) == 32
    # Blocks are loaded up to the first one that is gone.
    with owner_of(node) as owner:
        table = owner.open_table("lmcache")
        for name in list(table):
            if name.endswith(keys[20].chunk_hash.hex().encode()):
                owner.free(portcullis_memory.ObjectRef.from_bytes(table[name][24:]))
    assert manager.prefetch(keys) == 20
    node.stop()
    assert manager.prefetch(keys) == 0


@of_lmcache
def test_lmcache_evicts_below_the_capacity(manager):
    """The test stores twice as much as the adapter's capacity."""
    for first in range(0, 256, 32):
        keys = manager.keys(first, 32)
        manager.write(keys)
        manager.until(lambda: manager.adapter._client.statistics().get("set.stored", 0) >= first + 32)
        manager.leave_l1(keys)
        manager.until(lambda: manager.used() <= 0.85 * (32 << 20))
    told = manager.adapter._client.statistics()
    assert told["delete.deleted"] >= 256 - 128
    (store,) = manager.adapter._client.nodes()
    assert "set.out-of-memory" not in told and "set.quota" not in told and not store.counters["evicted"]
    assert manager.prefetch(keys) == 32
