"""The MCP tools: what they say of themselves, whose session a call is in, and how errors are told."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import platform
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ImageContent,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
    Tool,
    ToolAnnotations,
)

from prims import __version__, policy
from prims.config import Settings
from prims.errors import InstallError, KernelStartError, PrimsError
from prims.kernel.text import plain, shorten_str
from prims.model import RunResult
from prims.server import resources
from prims.server.arguments import RunCodeArguments, run_code_arguments
from prims.server.host import Host
from prims.server.progress import ProgressPump
from prims.server.render import OUTPUT_SCHEMA, render
from prims.session.table import Session
from prims.tasks import alongside

_log = logging.getLogger(__name__)

INSTRUCTIONS = (
    "run_code runs Python in a sandbox that is new for every call and returns text, values, pictures and files. "
    "Variables do not survive a call; files in the working directory do, for the session."
)


def _description(settings: Settings) -> str:
    packages = ", ".join(settings.default_packages) or "none"
    longest = "" if settings.max_run_seconds is None else f" (at most {settings.max_run_seconds:g})"
    memory = "" if settings.memory_bytes is None else f", {settings.memory_bytes / (1 << 30):.3g} GB of memory"
    return f"""Run Python {platform.python_version()} code in a fresh, throw-away sandbox and get everything back.

Each call has a brand-new virtualenv and Jupyter kernel: variables, imports and installed packages of earlier calls are
gone. Files stay for the session, which lasts as long as this server: the working directory, inputs in mounts/
(read-only), results in output/.

The code is run like a notebook cell and like a script: the value of a last expression is returned, top-level await,
magics and !commands work, figures of matplotlib are returned as pictures without savefig. print() what you need to see.

Installed: {packages}. Name others in `requirements`; there is no network inside.
Time: {settings.run_seconds:g} s unless timeout_seconds says otherwise{longest}, installation not counted{memory}."""


def _input_schema(settings: Settings) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "Python source."},
            "requirements": {
                "type": "array",
                "items": {"type": "string"},
                "description": 'Packages from PyPI for this call, such as ["plotly>=6", "scikit-learn"].',
            },
            "timeout_seconds": {
                "type": "number",
                "description": f"Time the code may run; {settings.run_seconds:g} when not given.",
            },
            "session_id": {
                "type": "string",
                "description": "The session whose files to use, as an earlier result gave it. Leave out to go on in "
                "the current one.",
            },
        },
        "required": ["code"],
        "additionalProperties": False,
    }


def make_server(host: Host) -> Server[Any]:
    """The MCP server in front of `host`; transports are wired elsewhere."""
    settings = host.settings
    run_code = Tool(
        name="run_code",
        title="Run Python code",
        description=_description(settings),
        input_schema=_input_schema(settings),
        output_schema=OUTPUT_SCHEMA,
        annotations=ToolAnnotations(
            title="Run Python code",
            read_only_hint=False,
            destructive_hint=False,
            idempotent_hint=False,
            open_world_hint=False,
        ),
    )

    async def list_tools(
        context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[run_code])

    async def call_tool(context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        if params.name != "run_code":
            return _failure(f"There is no tool {params.name!r} here; there is run_code.")
        try:
            with host.call():
                return await _run_code(host, context, run_code_arguments(params.arguments))
        except PrimsError as problem:
            return _failure(_told(problem))
        except asyncio.CancelledError:
            # One that is not this request's own would end the whole connection.
            if anyio.current_effective_deadline() == -math.inf:
                raise
            return _failure("The server was shut down while this call was running.")
        except Exception:
            _log.exception("run_code failed inside PRIMS")
            return _failure("PRIMS failed while running this code; its log says how.")

    async def list_templates(
        context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=[resources.TEMPLATE])

    async def list_resources(
        context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        # Files are found through the results that name them: a list must not depend on who asks.
        return ListResourcesResult(resources=[])

    async def read_resource(
        context: ServerRequestContext[Any, Any], params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        try:
            return await resources.read(await host.table(), str(params.uri))
        except PrimsError as problem:
            raise MCPError(INVALID_PARAMS, plain(problem)) from None

    async def note_first_answer(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        try:
            return await call_next(ctx)
        finally:
            host.answered()

    server: Server[Any] = Server(
        "prims",
        version=__version__,
        title="PRIMS: Python in a sandbox",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    server.middleware.append(note_first_answer)
    return server


async def _session(host: Host, context: ServerRequestContext[Any, Any], session_id: str | None) -> Session:
    """Whose workspace a call uses: the ONE place where that is decided."""
    if session_id is not None:
        return (await host.table()).get(session_id)
    return await host.process_session()


async def _run_code(host: Host, context: ServerRequestContext[Any, Any], arguments: RunCodeArguments) -> CallToolResult:
    admitted = policy.admit(host.settings, arguments.code, arguments.requirements, arguments.timeout_seconds)
    pump = ProgressPump()

    async def work() -> tuple[RunResult, Session]:
        session = await _session(host, context, arguments.session_id)
        run = (await host.table()).start(session, admitted.request, pump.emit)
        try:
            return await run.wait(), session
        except asyncio.CancelledError:
            # The client has turned away: nobody waits for the run, so it need not go on.
            run.stop.set("cancelled")
            raise

    # The pump ends before the answer is given: no progress may follow a result, nor come right with it.
    done = await alongside(work, partial(pump.run, context.session.report_progress))
    assert done is not None
    result, session = done
    rendered = render(replace(result, feedback=(*admitted.notes, *result.feedback)), session.id, host.settings)
    content: list[ContentBlock] = [TextContent(type="text", text=rendered.text)]
    for image in rendered.images:
        data = base64.b64encode(image.data or b"").decode("ascii")
        content.append(ImageContent(type="image", data=data, mime_type=image.mime))
    return CallToolResult(content=content, structured_content=rendered.structured, is_error=result.status != "ok")


def _failure(text: str) -> CallToolResult:
    """A call that ran nothing: PRIMS says why."""
    return CallToolResult(content=[TextContent(type="text", text=plain(text))], is_error=True)


def _told(problem: PrimsError) -> str:
    match problem:
        case InstallError():
            return f"The packages could not be installed, so the code was not run. {shorten_str(str(problem), 3000)}"
        case KernelStartError():
            return shorten_str(str(problem), 3000)
        case _:
            return str(problem)
