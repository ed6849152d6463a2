"""The tree of exceptions."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import portcullis_memory
import pytest
from portcullis_memory import _native, errors

FAULTS = {
    "caller": portcullis_memory.CallerError,
    "ended": portcullis_memory.EndedError,
    "tenant": portcullis_memory.TenantError,
    "node": portcullis_memory.NodeError,
    "machine": portcullis_memory.MachineError,
    "peer": portcullis_memory.PeerError,
    "library": portcullis_memory.LibraryError,
}


def test_each_kind_of_error_stands_under_whose_fault_it_is():
    for number, name, fault, meaning in _native.errors():
        error = errors.error_of(number, name, fault, True, meaning)
        assert isinstance(error, FAULTS[fault])
        assert [cls for cls in FAULTS.values() if isinstance(error, cls)] == [FAULTS[fault]]
        assert (error.number, error.name, error.fault, error.is_retryable) == (number, name, fault, True)
        assert str(error) == meaning


def test_the_tree_is_that_of_the_table_in_the_documentation():
    table = Path(__file__, "../../../../docs/errors.md").resolve()
    if not table.exists():
        pytest.skip("docs/errors.md is not here: the tests were taken out of their repository")
    rows = re.findall(r"^\| (\d+) \| `([a-z-]+)` \| ([a-z]+) \| (.*) \|$", table.read_text(), re.MULTILINE)
    assert [(int(number), name, fault, meaning) for number, name, fault, meaning in rows] == _native.errors()


def test_each_named_class_is_of_an_error_that_there_is():
    names = {name for _, name, _, _ in _native.errors()}
    assert set(errors._BY_NAME) <= names
    assert set(errors.__all__) <= set(portcullis_memory.__all__)


def test_what_is_wrong_with_a_value_is_a_value_error(session):
    with pytest.raises(ValueError, match="rights"):
        session.allocate(64, rights="x")
    assert not issubclass(portcullis_memory.CallerError, TypeError)


def test_exceptions_pickle(session):
    with pytest.raises(portcullis_memory.Error) as caught:
        session.lookup("nothing")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is portcullis_memory.ObjectGoneError
    assert (str(again), again.number, again.is_retryable) == (str(caught.value), 221, caught.value.is_retryable)
    assert "221" in repr(again)
