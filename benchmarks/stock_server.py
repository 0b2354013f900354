"""The peer of the benchmarks: the same MCP library, one stock ipykernel that is started once and reused for every call.

No sandbox, no new environment, nothing kept: the least that a server around a kernel can do.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import anyio
import zmq
from jupyter_client.manager import AsyncKernelManager
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

RUN_CODE = Tool(
    name="run_code",
    description="Run Python.",
    input_schema={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)


async def execute(client: Any, code: str) -> str:
    """What the code prints; returns when its own reply and its own idle have come."""
    request = client.execute(code, reply=False)
    text: list[str] = []
    while True:
        message = await client.get_iopub_msg(timeout=600)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "stream":
            text.append(message["content"]["text"])
        elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    while (await client.get_shell_msg(timeout=600))["parent_header"].get("msg_id") != request:
        pass
    return "".join(text)


async def start_kernel(*, receive_all: bool = False) -> tuple[AsyncKernelManager, Any]:
    """A stock ipykernel of this interpreter and a client whose subscription stands."""
    manager = AsyncKernelManager(kernel_name="python3")
    if receive_all:
        manager.context.setsockopt(zmq.RCVHWM, 0)
    await manager.start_kernel(env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = manager.client()
    client.start_channels()
    request = client.kernel_info()
    while (await client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != request:
        pass
    # What is published before the subscription stands is lost, the idle that is waited for included.
    while (await client.get_iopub_msg(timeout=60))["msg_type"] != "iopub_welcome":
        pass
    return manager, client


async def main() -> None:
    manager, client = await start_kernel()

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[RUN_CODE])

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=await execute(client, params.arguments["code"]))])

    server: Server[Any] = Server("stock", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    try:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    anyio.run(main)
