"""Subinterpreters cannot import the package, and their attempts do not affect the main interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: The beginning of a program: `subinterpreter(code)` runs code in a new subinterpreter of a kind, and ends it.
PRELUDE = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

def create(kind):
    if sys.version_info >= (3, 13):
        return interpreters.create(kind)
    return interpreters.create(isolated=kind == "isolated")

def run(number, code):
    if hasattr(interpreters, "exec"):
        failed = interpreters.exec(number, code)
        return "" if failed is None else failed.formatted
    try:
        interpreters.run_string(number, code)
    except Exception as error:
        return str(error)
    return ""

def subinterpreter(kind, code):
    number = create(kind)
    failed = run(number, code)
    interpreters.destroy(number)
    return failed

IMPORT = "import portcullis_memory"
USE = '''
import portcullis_memory
with portcullis_memory.Node(memory="16MiB") as node, node.connect() as session, session.allocate(10) as permission:
    try:
        permission.read_bytes(100)
    except portcullis_memory.CallerError:
        pass
'''

def main_works():
    import portcullis_memory
    with portcullis_memory.Node(memory="16MiB") as node, node.connect() as session, session.allocate(10) as permission:
        permission.write(b"0123456789")
        assert permission.read_bytes(10) == b"0123456789"
        try:
            permission.read_bytes(100)
        except portcullis_memory.CallerError as error:
            assert error.name == "outside-range", error.name
        else:
            raise AssertionError("it was read")
"""


def run(code: str) -> str:
    program = f"import sys\n{PRELUDE}\n{code}"
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


KINDS = pytest.mark.parametrize("kind", ["legacy", "isolated"])


@KINDS
def test_an_import_there_is_an_import_error_that_says_so(kind):
    told = run(f'print(subinterpreter({kind!r}, IMPORT))')
    assert "ImportError" in told and "subinterpreter" in told, told


def test_the_error_says_what_to_do():
    told = run('print(subinterpreter("legacy", IMPORT))')
    assert "main interpreter" in told and "WSGIApplicationGroup" in told, told


@KINDS
def test_the_main_interpreter_works_on_after_one_that_tried(kind):
    run(f"main_works()\nfor _ in range(3):\n    assert subinterpreter({kind!r}, USE)\n    main_works()")


@KINDS
def test_the_main_interpreter_may_be_the_second_to_import(kind):
    run(f"for _ in range(3):\n    assert subinterpreter({kind!r}, USE)\nmain_works()")


def test_a_subinterpreter_that_tries_again_is_refused_again():
    run("number = create('legacy')\nassert run(number, IMPORT)\nassert run(number, IMPORT)\ninterpreters.destroy(number)\nmain_works()")
