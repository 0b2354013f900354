"""What the demos share: a connection to a `prims serve` of its own that lasts over the cells of a notebook.

In a script it is two lines, as README.md shows: `async with Client(stdio_client(server)) as client: ...`.
"""

import asyncio
import base64
import os
import sys

from IPython.display import Image, display
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

_null = open(os.devnull, "w")


class Connection:
    """Opened and closed by one task, as the SDK wants it, while each cell of a notebook may be another."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "prims", "serve", *arguments]
        self._server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
        self._closing = asyncio.Event()
        self._opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._stay())

    async def open(self):
        """The client, as soon as the server has answered."""
        await asyncio.wait({self._opened, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task
        return self._opened.result()

    async def close(self):
        """End the server, and with it the session and its files."""
        self._closing.set()
        await self._task

    async def _stay(self):
        # What the server says to its operator would stand among the outputs.
        async with Client(stdio_client(self._server, errlog=_null)) as client:
            self._opened.set_result(client)
            await self._closing.wait()


def show(result):
    """What a model gets from a call: text, and pictures."""
    for block in result.content:
        if block.type == "text":
            print(block.text)
        elif block.type == "image":
            display(Image(base64.b64decode(block.data)))
