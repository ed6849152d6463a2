"""The examples of the documentation are run."""

from __future__ import annotations

import asyncio
import doctest
from pathlib import Path

import portcullis_memory
import pytest
from portcullis_memory import _native, aio, aio_structures, errors, sessions, structures

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = (portcullis_memory, aio, aio_structures, errors, sessions, structures)
NATIVE = [
    portcullis_memory.ArenaBuffer,
    portcullis_memory.Batch,
    portcullis_memory.Keeper,
    portcullis_memory.ObjectRef,
    portcullis_memory.Permission,
    portcullis_memory.View,
    _native.Session,
]


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for module in MODULES for test in finder.find(module)]
    for owner in NATIVE:
        documented = [(owner.__name__, owner.__doc__)]
        documented += [(f"{owner.__name__}.{name}", getattr(owner, name).__doc__) for name in vars(owner)]
        parser = doctest.DocTestParser()
        found += [parser.get_doctest(text or "", {}, name, None, 0) for name, text in documented]
    readme = Path(__file__).parent.parent / "README.md"
    found.append(doctest.DocTestParser().get_doctest(readme.read_text(), {}, "README.md", str(readme), 0))
    return [test for test in {test.name: test for test in found}.values() if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_the_example_does_what_it_says(example, node, session):
    example.globs.update(portcullis_memory=portcullis_memory, asyncio=asyncio, node=node, session=session)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    assert runner.run(example, out=said.append).failed == 0, "".join(said)


def test_all_that_is_public_is_documented():
    for name in portcullis_memory.__all__:
        thing = getattr(portcullis_memory, name)
        if not isinstance(thing, type):
            continue
        assert thing.__doc__, name
        for member, value in vars(thing).items():
            if not member.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{member}"
