"""Fixtures for all tests."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from mcp.client import Client

from prims.trees import remove_tree
from tests import kit, users


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def nothing_of_other_users_is_left() -> Iterator[None]:
    yield
    users.clean_up()


@pytest.fixture
def state() -> Iterator[Path]:
    """A short private folder for one server: socket paths have little room, and pytest's own are long."""
    folder = Path(tempfile.mkdtemp(prefix="pt-"))
    try:
        yield folder
    finally:
        remove_tree(folder)


@pytest.fixture(params=kit.ERAS)
async def client(state: Path, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client of a fresh server over stdio, once in each era of the protocol."""
    async with kit.connected(state, mode=request.param) as client:
        yield client
