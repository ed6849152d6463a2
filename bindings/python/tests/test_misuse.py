"""Mistakes of Python programs: each raises an exception that explains what to do, and none crashes the interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import portcullis_memory
import pytest


def closed(call, *arguments) -> portcullis_memory.Error:
    with pytest.raises(portcullis_memory.CallerError) as caught:
        call(*arguments)
    assert caught.value.name == "closed"
    return caught.value


def test_a_closed_session_says_that_it_is(node):
    session = node.connect()
    permission = session.allocate(64, lifetime=10)
    batch = session.batch()
    batch.read_bytes(permission)
    session.close()
    session.close()
    assert session.closed and not permission.is_live
    for call in (
        permission.read_bytes,
        permission.read,
        permission.revoke,
        batch.run,
        batch.submit,
        session.poll,
        session.arm,
        session.fileno,
        session.names,
        session.create_table,
        session.create_queue,
    ):
        closed(call)
    closed(session.allocate, 64)
    closed(permission.write, b"x")
    closed(permission.read_into, bytearray(1))
    closed(permission.fetch_and_add, 0, 1)
    closed(permission.extend, 9)
    closed(permission.keep, 1)
    error = closed(session.publish, "x", permission.object)
    assert "the session was closed" in str(error) and not error.is_retryable


def test_a_closed_structure_says_that_it_is(session):
    table, queue = session.create_table(), session.create_queue()
    for structure in (table, queue):
        structure.close()
        structure.close()
        assert structure.closed
    closed(table.get_many, [b"key"])
    closed(table.__getitem__, b"key")
    closed(len, table)
    closed(queue.push, b"entry")
    closed(queue.pop)


def test_a_stopped_node_says_that_it_is():
    node = portcullis_memory.Node(memory="16MiB")
    with node:
        assert not node.stopped
    node.stop()
    assert node.stopped
    closed(node.connect)
    assert not os.path.exists(node.address.removeprefix("shm:"))


def test_a_second_thread_is_told_to_take_a_session_of_its_own(node):
    with node.connect() as session, node.connect() as holder:
        held = holder.allocate(64, lifetime=10)
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                session.acquire(held.object, wait=1)
            except portcullis_memory.Error as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until = time.monotonic() + 5
        told = None
        while told is None and time.monotonic() < until:
            try:
                session.names()
            except portcullis_memory.CallerError as error:
                told = error
        thread.join()
        assert told is not None and told.name == "in-use" and told.is_retryable
        assert "another thread" in str(told)
        assert isinstance(caught[0], portcullis_memory.ConflictError)
        assert session.names() == []


def test_other_threads_run_while_one_waits(node):
    with node.connect() as session, node.connect() as holder:
        held = holder.allocate(64, lifetime=10)
        refused = (portcullis_memory.Error, session.acquire, held.object)
        thread = threading.Thread(target=lambda: pytest.raises(*refused, wait=0.3))
        thread.start()
        turns = 0
        while thread.is_alive():
            turns += 1
        thread.join()
        assert turns > 100


def test_threads_with_sessions_of_their_own_do_not_disturb_each_other(node):
    errors: list[BaseException] = []

    def work(letter: bytes) -> None:
        try:
            with node.connect() as session, session.allocate(4096, lifetime=10) as permission:
                for _ in range(300):
                    permission.write(letter * 4096)
                    assert permission.read_bytes() == letter * 4096
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(bytes([n]),)) for n in range(65, 69)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Makes Ctrl-C raise KeyboardInterrupt, also if the process that started the tests ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_ends_a_wait(node):
    with node.connect() as session, node.connect() as holder:
        held = holder.allocate(64, lifetime=10)
        queue = session.create_queue()
        table = session.create_table(lease=2)
        # A client that needs the head waits for three leases.
        head = holder.acquire(table.head, lifetime=10, rights="rw", wait=20)
        waits = (lambda: session.acquire(held.object, wait=50), queue.pop, lambda: table.set(b"key", b"value", ttl=50))
        for wait in waits:
            before = time.monotonic()
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                wait()
            timer.join()
            assert time.monotonic() - before < 5
        # The session and the table can still be used, and a permission that arrives late is given back.
        head.revoke()
        table.set(b"key", b"value", ttl=50)
        assert table[b"key"] == b"value"
        held.revoke()
        with session.allocate(64) as permission:
            permission.write(b"on")


def test_a_node_that_goes_ends_a_wait():
    node = portcullis_memory.Node(memory="16MiB")
    with node.connect() as session, node.connect() as holder:
        held = holder.allocate(64, lifetime=10)
        queue = session.create_queue()
        timer = threading.Timer(0.2, node.stop)
        timer.start()
        with pytest.raises(portcullis_memory.NodeError) as caught:
            session.acquire(held.object, wait=50)
        timer.join()
        assert caught.value.name in ("node-gone", "session-lost")
        for call in (held.read_bytes, session.names, queue.pop):
            with pytest.raises(portcullis_memory.NodeError):
                call()
        with pytest.raises(portcullis_memory.NodeError):
            session.allocate(64)


def test_nobody_at_the_address_and_no_address_are_two_things(tmp_path):
    with pytest.raises(portcullis_memory.NodeError) as caught:
        portcullis_memory.connect(f"shm:{tmp_path}/none.sock")
    assert caught.value.name == "no-node" and caught.value.is_retryable
    with pytest.raises(portcullis_memory.CallerError) as caught:
        portcullis_memory.connect("nowhere")
    assert not caught.value.is_retryable
    with pytest.raises(TypeError):
        portcullis_memory.connect(None)
    with pytest.raises(portcullis_memory.Error):
        portcullis_memory.connect("udp:127.0.0.1:1", certificates=tmp_path, tenant="red")


def test_a_node_that_cannot_start_says_why():
    with pytest.raises(portcullis_memory.Error):
        portcullis_memory.Node(memory=0)
    with pytest.raises(portcullis_memory.CallerError):
        portcullis_memory.Node(memory="much")


CHILD = """
import os, sys, portcullis_memory
node = portcullis_memory.Node(memory="16MiB")
session = node.connect()
permission = session.allocate(64, lifetime=10, rights="rwa")
permission.write(b"parent")
view = permission.read()
table, queue = session.create_table(), session.create_queue()
keeper = permission.keep(by=5)
batch = session.batch()
batch.read_bytes(permission)
child = os.fork()
if child == 0:
    calls = [lambda: permission.read_bytes(), lambda: session.allocate(64), lambda: table.get(b"x"),
             lambda: queue.push(b"x"), lambda: node.connect(), batch.run, session.close, permission.revoke,
             lambda: session.poll(), view.tobytes, lambda: memoryview(view), node.stop, keeper.close]
    for call in calls:
        try:
            call()
        except portcullis_memory.CallerError as error:
            assert error.name == "forked" and "after the fork" in str(error), error
        else:
            raise AssertionError("the child was let in")
    assert session.closed and not permission.is_live
    again = portcullis_memory.connect(node.address)  # the node's thread is in the parent
    with again.allocate(64) as mine:
        mine.write(b"child")
    del permission, view, batch, keeper, table, queue, session, node
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert permission.read_bytes(6) == view.tobytes()[:6] == b"parent"
table[b"key"] = b"value"
assert os.path.exists(node.address.removeprefix("shm:"))
"""

UNDER_WAY = """
import portcullis_memory, threading
node = portcullis_memory.Node(memory="16MiB")
session, other, third = node.connect(), node.connect(), node.connect()
held = session.allocate(64, lifetime=10)
batch = other.batch()
into = bytearray(64)
batch.read_into(other.allocate(64, lifetime=10), into)
batch.acquire(held.object, wait=50)
batch.submit()
def wait():
    third.acquire(held.object, wait=50)
thread = threading.Thread(target=wait, daemon=True)
thread.start()
queue = session.create_queue()
threading.Thread(target=queue.pop, daemon=True).start()
view = held.read()
kept = held.keep(by=5)
memory = memoryview(view)
"""

AWAITED = """
import asyncio, portcullis_memory
node = portcullis_memory.Node(memory="16MiB")
session, other = node.connect(), node.connect()
held = session.allocate(64, lifetime=10)
async def main():
    asyncio.ensure_future(other.aacquire(held.object, wait=50))
    asyncio.ensure_future(other.aread(held))
    await asyncio.sleep(0)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
"""


def ends_well(code: str) -> None:
    # An interpreter that ends at once leaves files behind, which are removed with this folder.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", code],
            env={**os.environ, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    for complaint in ("panicked", "Fatal", "Segmentation", "AssertionError"):
        assert complaint not in done.stderr, done.stderr


def test_a_child_of_fork_is_told_to_open_its_own_and_harms_nobody():
    ends_well(CHILD)


@pytest.mark.parametrize("ending", ["", "import sys; sys.exit(0)", "import os; os._exit(0)"])
def test_an_interpreter_ends_with_operations_under_way(ending):
    ends_well(UNDER_WAY + ending)


def test_an_interpreter_ends_with_coroutines_under_way():
    ends_well(AWAITED)


def test_a_signal_handler_that_uses_the_session_is_told_that_it_is_in_use(node):
    with node.connect() as session, node.connect() as holder:
        held = holder.allocate(64, lifetime=10)
        told: list[str] = []

        def handle(*_: object) -> None:
            try:
                session.names()
            except portcullis_memory.CallerError as error:
                told.append(error.name)

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            with pytest.raises(portcullis_memory.ConflictError):
                session.acquire(held.object, wait=0.5)
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert told == ["in-use"]
