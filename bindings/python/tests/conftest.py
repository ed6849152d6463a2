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
def three_nodes() -> Iterator[list[portcullis_memory.Node]]:
    """Nodes of one test, which may stop them."""
    nodes = [portcullis_memory.Node(memory="32MiB") for _ in range(3)]
    yield nodes
    for node in nodes:
        node.stop()


@pytest.fixture
def addresses(three_nodes: list[portcullis_memory.Node]) -> list[str]:
    return [node.address for node in three_nodes]


@pytest.fixture
def session(node: portcullis_memory.Node) -> Iterator[portcullis_memory.Session]:
    with node.connect() as session:
        yield session


@pytest.fixture
def permission(session: portcullis_memory.Session) -> Iterator[portcullis_memory.Permission]:
    """A permission over 1 MiB with all rights, for as long as any test takes."""
    with session.allocate("1MiB", lifetime=10, rights="rwa") as permission:
        yield permission
