"""Buffers of the arena, views that can be written, and the registration of the arena with CUDA."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import portcullis_memory
import pytest

FAKE = Path(__file__).parents[3] / "crates/foreign/tests/fake_cuda.c"
Build = Callable[..., Path]


@pytest.fixture
def fake(tmp_path: Path) -> Build:
    """Compiles a stand-in for the library of CUDA's driver, which writes its calls to a file beside it."""
    compiler = shutil.which("cc")
    if compiler is None or not FAKE.exists():
        pytest.skip("there is no C compiler, or no source, for the stand-in of CUDA's driver")

    def build(*flags: str) -> Path:
        library = tmp_path / "libcuda.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", library, FAKE, "-ldl"], check=True)
        return library

    return build


def calls(library: Path, name: str) -> list[list[str]]:
    log = Path(f"{library}.log")
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[1:] for line in lines if line.split()[0] == name]


def test_a_view_can_be_written_if_that_is_requested(permission):
    permission.write(b"hello")
    with permission.read(5) as view:
        assert view.readonly
    writable = permission.read(5, writable=True)
    with writable as view:
        assert view.readonly is False
        view[0:1] = b"J"
        assert writable.tobytes() == b"Jello"
    assert permission.read_bytes(5) == b"hello", "the node's memory is not the program's copy"


def test_a_view_of_a_batch_can_be_written(session, permission):
    permission.write(b"hello")
    batch = session.batch()
    batch.read(permission, 5, writable=True)
    batch.read(permission, 5)
    writable, other = batch.run()
    assert (memoryview(writable).readonly, memoryview(other).readonly) == (False, True)


def test_a_buffer_of_the_arena_is_read_into_and_written_from(session, permission):
    permission.write(b"0123456789")
    buffer = session.buffer(4)
    with memoryview(buffer) as bytes_in_place:
        assert (len(buffer), bytes_in_place.nbytes, bytes_in_place.readonly) == (4, 4, False)
        permission.read_into(buffer, 3)
        assert bytes_in_place == b"3456"
        bytes_in_place[:] = b"abcd"
        permission.write(buffer, offset=1)
    assert permission.read_bytes(10) == b"0abcd56789"


def test_a_buffer_of_the_arena_needs_no_room_for_a_copy(node):
    with node.connect(arena="1MiB") as session, session.allocate("512KiB", lifetime=10) as permission:
        buffer = session.buffer("512KiB")
        memoryview(buffer)[-1:] = b"x"
        permission.write(buffer)
        memoryview(buffer)[-1:] = b"y"
        permission.read_into(buffer)
        assert memoryview(buffer)[-1:] == b"x"
        with pytest.raises(portcullis_memory.Error) as full:
            session.buffer("512KiB")
        assert full.value.name == "arena-full"
        del buffer
        gc.collect()
        session.buffer("512KiB")


def test_an_access_outside_the_permission_leaves_the_buffer_usable(session):
    with session.allocate(8, lifetime=10) as small:
        buffer = session.buffer(9)
        for act in (small.read_into, small.write):
            with pytest.raises(portcullis_memory.CallerError) as outside:
                act(buffer)
            assert outside.value.name == "outside-range"
        assert len(memoryview(buffer)) == 9


def test_a_buffer_under_way_is_refused_to_others_until_its_operation_has_ended(session, permission):
    permission.write(b"hello")
    buffer = session.buffer(5)
    batch = session.batch()
    batch.read_into(permission, buffer)
    batch.write(permission, buffer, 8)
    first, second = batch.run()
    assert first is None
    assert second.name == "under-way"
    batch.write(permission, buffer, 8)
    assert batch.run() == [None]
    assert permission.read_bytes(5, 8) == b"hello"
    batch.read_into(permission, buffer, 8)
    (number,) = batch.submit()
    session.forget(number)
    del buffer, batch
    gc.collect()
    assert permission.read_bytes(5) == b"hello"


NODE = """
import sys, portcullis_memory
with portcullis_memory.Node(memory="16MiB", socket=sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.read()
"""


def freeze(node):
    """Stops a node. Returns when all its threads have stopped."""
    node.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(node.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_an_operation_that_a_signal_has_interrupted_gives_its_buffer_back_when_it_ends(tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-c", NODE, tmp_path / "socket"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        try:
            assert node.stdout is not None and node.stdout.readline() == b"ready\n"
            with portcullis_memory.connect(f"shm:{tmp_path}/socket") as session:
                permission = session.allocate(8, lifetime=10)
                permission.write(b"interest")
                buffer = session.buffer(8)
                freeze(node)
                timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    permission.read_into(buffer)
                timer.join()
                with pytest.raises(portcullis_memory.CallerError) as under_way:
                    permission.write(buffer)
                assert under_way.value.name == "under-way"
                node.send_signal(signal.SIGCONT)
                permission.read_bytes(8)
                permission.read_into(buffer)
                assert bytes(buffer) == b"interest"
        finally:
            node.send_signal(signal.SIGCONT)
            node.communicate()
            signal.signal(signal.SIGINT, before)


def test_an_operation_that_has_timed_out_closes_its_buffer(tmp_path):
    command = [sys.executable, "-c", NODE, tmp_path / "socket"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        try:
            assert node.stdout is not None and node.stdout.readline() == b"ready\n"
            with portcullis_memory.connect(f"shm:{tmp_path}/socket", within=0.5) as session:
                permission = session.allocate(8, lifetime=10)
                buffer = session.buffer(8)
                seen = memoryview(buffer)
                freeze(node)
                with pytest.raises(portcullis_memory.NodeError) as late:
                    permission.read_into(buffer)
                assert late.value.name == "timed-out"
                for act in (permission.read_into, permission.write, memoryview):
                    with pytest.raises(portcullis_memory.CallerError) as lost:
                        act(buffer)
                    assert lost.value.name == "closed"
                assert len(bytes(seen)) == 8, "the memory stays mapped"
                node.send_signal(signal.SIGCONT)
                another = session.buffer(8)
                permission.read_into(another)
                # The operation has ended by now. No later buffer gets the bytes that `seen` still points to.
                before = bytes(seen)
                for taken in [session.buffer(8) for _ in range(1000)]:
                    memoryview(taken)[:] = b"\xff" * 8
                assert bytes(seen) == before
        finally:
            node.send_signal(signal.SIGCONT)
            node.communicate()


def test_a_library_that_wants_to_write_gets_the_buffer_as_it_is(session, permission):
    # torch.frombuffer requests a buffer that can be written first, as numpy does, and warns if it gets none.
    numpy = pytest.importorskip("numpy")
    for source in (session.buffer(8), permission.read(8, writable=True)):
        assert numpy.frombuffer(source, numpy.uint8).flags.writeable
    assert not numpy.frombuffer(permission.read(8), numpy.uint8).flags.writeable


def test_the_example_for_gpus_says_that_torch_is_missing(tmp_path):
    # A module that cannot be imported stands for torch, whether torch is here or not.
    (tmp_path / "torch.py").write_text("raise ImportError('not in this test')")
    example = Path(__file__).parents[1] / "benchmarks/gpu.py"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, example]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert ended.returncode == 77
    assert "not in this test" in ended.stderr and "pip install torch" in ended.stderr


def test_a_buffer_of_another_session_is_copied(node, session, permission):
    with node.connect() as other:
        buffer = other.buffer(5)
        memoryview(buffer)[:] = b"hello"
        permission.write(buffer)
        memoryview(buffer)[:] = bytes(5)
        permission.read_into(buffer)
        assert bytes(buffer) == b"hello"


def test_a_buffer_outlives_its_session(node):
    session = node.connect()
    buffer = session.buffer(5)
    memoryview(buffer)[:] = b"hello"
    view = memoryview(buffer)
    session.close()
    assert bytes(view) == b"hello"
    with pytest.raises(portcullis_memory.CallerError):
        session.buffer(5)


def test_asyncio_moves_buffers_of_the_arena(session, permission):
    async def move(length: int) -> bytes:
        buffer = session.buffer(length)
        memoryview(buffer)[:] = b"z" * length
        await session.awrite(permission, buffer)
        memoryview(buffer)[:] = bytes(length)
        await session.aread_into(permission, buffer)
        return bytes(buffer)

    for length in (5, 600_000):
        assert asyncio.run(move(length)) == b"z" * length


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_fork_gets_no_buffer_and_ends_no_registration(node, fake):
    library = fake()
    with node.connect(cuda=library) as session:
        buffer = session.buffer(5)
        child = os.fork()
        if child == 0:
            try:
                memoryview(buffer)
            except portcullis_memory.CallerError as error:
                del buffer
                gc.collect()
                os._exit(0 if error.name == "forked" else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert calls(library, "cuMemHostUnregister") == []
        del buffer


def test_the_whole_arena_is_registered_once_and_the_registration_ends_with_the_last_buffer(node, fake):
    library = fake()
    with node.connect(arena="1MiB", cuda=library) as session:
        assert session.cuda is True
        buffer = session.buffer(64)
    ((address, length, flags),) = calls(library, "cuMemHostRegister")
    assert (int(length) >= 1 << 20, flags) == (True, "1")
    assert calls(library, "cuMemHostUnregister") == [], "a GPU may copy from the buffer"
    del buffer, session
    gc.collect()
    assert calls(library, "cuMemHostUnregister") == [[address, "1"]]
    assert calls(library, "cuDevicePrimaryCtxRelease") == [["40"]]


def test_a_driver_that_refuses_is_an_error_with_a_name(node, fake):
    library = fake('-DREFUSED="cuMemHostRegister"', "-DRESULT=2")
    with pytest.raises(portcullis_memory.MachineError, match="cuMemHostRegister.*CUDA_ERROR_OF_THE_TEST") as refused:
        node.connect(cuda=str(library))
    assert refused.value.name == "cuda-refused"
    assert str(library) in str(refused.value)


def test_a_missing_driver_is_an_error_that_names_the_library(node):
    with pytest.raises(portcullis_memory.MachineError, match="/nowhere/libcuda.so.1.*cuda=False") as missing:
        node.connect(cuda="/nowhere/libcuda.so.1")
    assert missing.value.name == "no-cuda"


def test_nothing_is_registered_by_default_and_auto_says_whether(node):
    with node.connect() as session:
        assert session.cuda is False
    with node.connect(cuda="auto") as session:
        assert isinstance(session.cuda, bool)
        with session.allocate(5) as permission:
            permission.write(b"hello")


def test_nothing_is_loaded_by_default():
    # The stand-ins of other tests stay loaded in this process, so another one looks.
    program = """
import pathlib, portcullis_memory
with portcullis_memory.Node(memory="16MiB") as node, node.connect() as session:
    assert not session.cuda and "libcuda" not in pathlib.Path("/proc/self/maps").read_text()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_another_word_is_refused(node):
    with pytest.raises(portcullis_memory.CallerError, match="cuda is True, False"):
        node.connect(cuda="yes")
    with pytest.raises(TypeError):
        node.connect(cuda=3.5)
