"""Buffers of many kinds, and bytes in place."""

from __future__ import annotations

import array
import asyncio
import ctypes
import inspect
import mmap
import pickle
import re

import portcullis_memory
import pytest

numpy = pytest.importorskip("numpy")

PATTERN = bytes(range(1, 65))


def mapped() -> mmap.mmap:
    return mmap.mmap(-1, 64)


TARGETS = {
    "bytearray": lambda: bytearray(64),
    "memoryview": lambda: memoryview(bytearray(64)),
    "a part of a memoryview": lambda: memoryview(bytearray(100))[7:71],
    "array of doubles": lambda: array.array("d", [0.0] * 8),
    "mmap": mapped,
    "ctypes array": lambda: (ctypes.c_uint32 * 16)(),
    "numpy bytes": lambda: numpy.zeros(64, numpy.uint8),
    "numpy floats": lambda: numpy.zeros((2, 4), numpy.float64),
    "numpy big-endian": lambda: numpy.zeros(16, ">i4"),
    "numpy complex": lambda: numpy.zeros(4, numpy.complex128),
    "numpy bools": lambda: numpy.zeros(64, numpy.bool_),
    "numpy records": lambda: numpy.zeros(4, [("Over", "i8"), ("x", "f4"), ("y", "f4")]),
    "numpy scalar array": lambda: numpy.zeros((), "f8"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_any_buffer_is_read_into_and_written_from(permission, kind):
    permission.write(PATTERN)
    target = TARGETS[kind]()
    length = memoryview(target).nbytes
    permission.read_into(target)
    assert memoryview(target).tobytes() == PATTERN[:length]
    permission.write(bytes(64))
    permission.write(target)
    assert permission.read_bytes(length) == PATTERN[:length]


def test_a_long_numpy_array_is_carried_in_pieces(permission):
    numbers = numpy.arange(1 << 17, dtype=numpy.int64)
    permission.write(numbers)
    into = numpy.zeros_like(numbers)
    permission.read_into(into)
    assert (numbers == into).all()


def test_an_empty_buffer_is_a_transfer_of_nothing(permission):
    permission.read_into(bytearray())
    permission.write(b"")
    permission.write(numpy.zeros((0, 5)))
    assert permission.read_bytes(0) == b""
    assert permission.read_bytes(offset=1 << 20) == b""
    with pytest.raises(portcullis_memory.CallerError):
        permission.read_bytes(offset=(1 << 20) + 1)


@pytest.mark.parametrize("target", [b"constant", memoryview(b"constant")])
def test_what_cannot_be_written_is_not_read_into(permission, target):
    with pytest.raises(portcullis_memory.CallerError, match="read-only.*bytearray") as caught:
        permission.read_into(target)
    assert caught.value.name == "bad-argument"
    frozen = numpy.zeros(8)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        permission.read_into(frozen)


@pytest.mark.parametrize("target", [memoryview(bytearray(64))[::2], numpy.zeros((8, 8))[:, 1]])
def test_bytes_that_do_not_lie_together_are_refused(permission, target):
    for forbidden in (permission.read_into, permission.write):
        with pytest.raises(portcullis_memory.CallerError, match="one after another"):
            forbidden(target)


def test_references_to_python_objects_are_no_bytes(permission):
    objects = numpy.array([object(), None], dtype=object)
    records = numpy.zeros(2, [("a", "i8"), ("b", object)])
    pointers = (ctypes.py_object * 2)()
    for target in (objects, records, pointers):
        for forbidden in (permission.read_into, permission.write):
            with pytest.raises((portcullis_memory.CallerError, ValueError)):
                forbidden(target)


@pytest.mark.parametrize("thing", [None, 5, "text", [1, 2], object()])
def test_what_is_no_buffer_is_a_type_error(permission, thing):
    for forbidden in (permission.read_into, permission.write):
        with pytest.raises(TypeError):
            forbidden(thing)


def test_a_view_is_read_only_and_ends_with_its_block(permission):
    permission.write(PATTERN)
    with permission.read(64) as view:
        assert isinstance(view, memoryview) and view.readonly and view.format == "B"
        assert view == PATTERN
        with pytest.raises(TypeError):
            view[0] = 1
    with pytest.raises(ValueError, match="released"):
        view[0]


def test_a_view_without_a_block_is_a_buffer_until_it_is_released(permission):
    permission.write(PATTERN)
    view = permission.read(8, offset=8)
    assert len(view) == 8 and view.tobytes() == bytes(view) == PATTERN[8:16]
    view.release()
    view.release()
    for forbidden in (view.tobytes, lambda: memoryview(view)):
        with pytest.raises(BufferError, match="released"):
            forbidden()


def test_what_was_made_of_a_view_keeps_its_bytes(permission):
    permission.write(PATTERN)
    with permission.read(64) as view:
        numbers = numpy.frombuffer(view, dtype=numpy.uint8)
    permission.write(bytes(64))
    for _ in range(100):
        permission.read_bytes(64)
    assert numbers.tobytes() == PATTERN
    with pytest.raises(BufferError), permission.read(64) as view:
        lent = pickle.PickleBuffer(view)
    assert bytes(lent.raw()) == bytes(64)
    lent.release()
    with permission.read(64) as view:
        part = view[3:5]
    assert part == bytes(2)
    part.release()


def test_a_view_outlives_its_session(node):
    with node.connect() as session, session.allocate(64) as permission:
        permission.write(PATTERN)
        view = permission.read()
    assert view.tobytes() == PATTERN


def test_no_piece_of_the_arena_is_lost(node):
    # Each of these would use the arena up many times over.
    with node.connect(arena="512KiB") as session:
        into = bytearray(4096)
        for _ in range(25):
            with session.allocate(4096, lifetime=10) as permission:
                permission.write(bytes(4096))
                for _ in range(100):
                    permission.read_into(into)
                    with permission.read() as view:
                        assert view[0] == 0
                    permission.read()
                    with pytest.raises(portcullis_memory.CallerError):
                        permission.read_into(into, offset=1)
        for _ in range(20):
            with session.allocate("64KiB", lifetime=10) as permission:
                batch = session.batch()
                for _ in range(6):
                    batch.read(permission)
                assert not any(isinstance(view, Exception) for view in batch.run())


def test_an_arena_that_is_full_says_what_to_do(node):
    with node.connect(arena="512KiB") as session, session.allocate("64KiB", lifetime=10) as permission:
        held = []
        with pytest.raises(portcullis_memory.CallerError, match="arena") as caught:
            for _ in range(10):
                held.append(permission.read())
        assert caught.value.name == "arena-full" and caught.value.is_retryable
        held.clear()
        assert len(permission.read()) == 1 << 16
        with pytest.raises(portcullis_memory.CallerError):
            permission.read("1TiB")
        with pytest.raises(portcullis_memory.CallerError):
            permission.read_bytes("1TiB")


def test_an_arena_that_is_too_small_names_the_size_that_is_needed_and_who_allows_it(node):
    with node.connect(arena="512KiB") as session, session.allocate("3MiB", lifetime=10) as permission:
        batch = session.batch()
        batch.read(permission)
        with pytest.raises(portcullis_memory.CallerError) as caught:
            permission.read()
        for error in (caught.value, batch.run()[0]):
            assert error.name == "arena-full" and not error.is_retryable
            for told in ("3145728 bytes", "524288", "arena=", "--arena-max", "--ports-memory"):
                assert told in str(error)
        needed = int(re.search(r"arena of (\d+) bytes", str(caught.value))[1])
        with node.connect(arena=needed) as larger:
            with larger.allocate("3MiB", lifetime=10) as there, there.read() as view:
                assert len(view) == 3 << 20
        with node.connect(arena=needed - (1 << 20)) as smaller, smaller.allocate("3MiB", lifetime=10) as there:
            with pytest.raises(portcullis_memory.CallerError, match=str(needed)):
                there.read()


def test_the_default_of_the_arena_is_in_the_signatures():
    for connects in (portcullis_memory.connect, portcullis_memory.Node.connect, portcullis_memory.Session):
        assert inspect.signature(connects).parameters["arena"].default == "4MiB"


@pytest.mark.parametrize("length", [100, 5 << 20])
@pytest.mark.parametrize("way", ["call", "batch", "asyncio"])
def test_a_buffer_that_is_larger_than_the_permission_is_refused_before_a_byte_moves(session, way, length):
    with session.allocate(length - 1, lifetime=10) as permission:
        permission.write(b"a" * (length - 1))
        before, data = bytearray(b"b" * length), b"c" * length
        for name, buffer, offset in (("read_into", before, 0), ("write", data, 0), ("write", data[:2], length - 2)):
            with pytest.raises(portcullis_memory.CallerError) as caught:
                if way == "call":
                    getattr(permission, name)(buffer, offset)
                elif way == "batch":
                    batch = session.batch()
                    getattr(batch, name)(permission, buffer, offset)
                    raise batch.run()[0]
                else:
                    asyncio.run(getattr(session, f"a{name}")(permission, buffer, offset))
            assert caught.value.name == "outside-range"
            assert str(caught.value) == f"{len(buffer)} bytes at {offset} reach outside the permission's {length - 1}"
        assert before == b"b" * length
        assert permission.read_bytes() == b"a" * (length - 1)
