"""A node inside the test's process, and sessions with it."""

from __future__ import annotations

from collections.abc import Iterator

import portcullis_memory
import pytest


@pytest.fixture(scope="session")
def node() -> Iterator[portcullis_memory.Node]:
    with portcullis_memory.Node(memory="128MiB") as node:
        yield node


@pytest.fixture
def session(node: portcullis_memory.Node) -> Iterator[portcullis_memory.Session]:
    with node.connect() as session:
        yield session


@pytest.fixture
def permission(session: portcullis_memory.Session) -> Iterator[portcullis_memory.Permission]:
    """A permission over 1 MiB with all rights, for as long as any test takes."""
    with session.allocate("1MiB", lifetime=10, rights="rwa") as permission:
        yield permission
