"""A first look through a real client."""

from __future__ import annotations

import pytest
from mcp.client import Client

from tests import kit


@pytest.mark.anyio
async def test_a_call_returns_text_and_value(client: Client) -> None:
    result = await kit.run_code(client, "print('hello')\n1 + 1")
    assert not result.is_error
    assert result.structured_content["stdout"] == "hello\n"
    assert result.structured_content["result"] == "2"
