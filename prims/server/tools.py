"""The MCP tools: what they say of themselves, whose session a call is in, and how errors are told."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    Annotations,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    GetPromptRequestParams,
    GetPromptResult,
    ImageContent,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)
from mcp.types.version import is_version_at_least

from prims import __version__, policy
from prims.config import NETWORKS, Settings
from prims.errors import InstallError, KernelStartError, PrimsError
from prims.kernel.text import plain, shorten_str
from prims.model import RunResult
from prims.server import app, file_tools, prompt, resources
from prims.server.arguments import Parameter, input_schema, read
from prims.server.host import Host
from prims.server.mending import mended_context
from prims.server.progress import ProgressPump
from prims.server.render import OUTPUT_SCHEMA, file_uri, render
from prims.session.table import Session, SessionTable
from prims.tasks import alongside

_log = logging.getLogger(__name__)

_MOST_LINKS = 20

Context = ServerRequestContext[Any, Any]

INSTRUCTIONS = (
    "run_code runs Python in a sandbox that is new for every call and returns text, values, pictures and files. "
    "Variables do not survive a call; files in the working directory do, for the session. mount_file brings data in, "
    "list_dir and preview_file look around, persist_artifact takes results away. The resource "
    "prims://SESSION_ID/notebook.ipynb is the session as a notebook."
)


def _session_id(settings: Settings) -> Parameter:
    stdio = settings.transport == "stdio"
    left_out = "Can be left out." if stdio else "Without it a call may get a new, empty session."
    life = _session_life(settings)
    text = f"The session whose files to use, as an earlier result gave it. {left_out} {life}"
    return Parameter("session_id", "text", text)


@dataclass(frozen=True, slots=True)
class Call:
    """One call as a tool sees it: its arguments, its session, and where to tell of progress."""

    arguments: dict[str, Any]
    session: Session
    table: SessionTable
    settings: Settings
    pump: ProgressPump
    asked: float
    links: bool


Handler = Callable[[Call], Awaitable[CallToolResult]]


def _run_description(settings: Settings) -> str:
    packages = ", ".join(settings.default_packages) or "none"
    longest = "" if settings.max_run_seconds is None else f" (at most {settings.max_run_seconds:g})"
    memory = "" if settings.memory_bytes is None else f", {settings.memory_bytes / (1 << 30):.3g} GB of memory"
    return f"""Run Python {platform.python_version()} code in a fresh, throw-away sandbox and get everything back.

Each call has a brand-new virtualenv and Jupyter kernel: variables, imports and installed packages of earlier calls are
gone. Files stay for the session: the working directory, inputs in mounts/ (read-only), results in output/.
{_session_life(settings)}

The code is run like a notebook cell and like a script: the value of a last expression is returned, top-level await,
magics and !commands work, figures of matplotlib are returned as pictures without savefig. print() what you need to see.

Installed: {packages}. Name others in `requirements`. {prompt.network_words(settings)}
Time: {settings.run_seconds:g} s unless timeout_seconds says otherwise{longest}, installation not counted{memory}."""


def _session_life(settings: Settings) -> str:
    if settings.transport == "stdio":
        return "The session lasts as long as this server."
    return f"A session ends after {settings.session_idle_seconds / 60:g} minutes without a call."


def _run_parameters(settings: Settings) -> tuple[Parameter, ...]:
    return (
        Parameter("code", "text", "Python source.", required=True),
        Parameter("requirements", "texts", 'Packages from PyPI for this call, such as ["plotly>=6", "scikit-learn"].'),
        Parameter("files", "files", "Files to mount first, as mount_file does."),
        Parameter("timeout_seconds", "number", f"Time the code may run; {settings.run_seconds:g} when not given."),
        Parameter("network", "text", f"One of {', '.join(NETWORKS)}; at most {settings.network}, the default."),
        _session_id(settings),
    )


def make_server(host: Host) -> Server[Any]:
    """The MCP server in front of `host`; transports are wired elsewhere."""
    settings = host.settings
    run_code = Tool(
        name="run_code",
        title="Run Python code",
        description=_run_description(settings),
        input_schema=input_schema(_run_parameters(settings)),
        output_schema=OUTPUT_SCHEMA,
        annotations=ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
        ),
        _meta=app.TOOL_META,
    )
    tools: dict[str, tuple[Tool, tuple[Parameter, ...], Handler]] = {
        "run_code": (run_code, _run_parameters(settings), _run_code)
    }
    for tool in file_tools.TOOLS:
        parameters = (*tool.parameters, _session_id(settings))
        listed = Tool(
            name=tool.name,
            title=tool.title,
            description=tool.description,
            input_schema=input_schema(parameters),
            output_schema=tool.output_schema,
            annotations=tool.annotations,
        )
        tools[tool.name] = (listed, parameters, tool.handler)

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool for tool, _, _ in tools.values()])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        if params.name not in tools:
            return _failure(f"There is no tool {params.name[:100]!r} here; there are {', '.join(tools)}.")
        _, parameters, handler = tools[params.name]
        try:
            arguments = read(params.name, parameters, params.arguments)
            with host.call():
                return await _call(host, context, arguments, handler)
        except PrimsError as problem:
            return _failure(_told(problem))
        except asyncio.CancelledError:
            # One that is not this request's own would end the whole connection.
            if anyio.current_effective_deadline() == -math.inf:
                raise
            return _failure("The server was shut down while this call was running.")
        except Exception:
            _log.exception("%s failed inside PRIMS", params.name)
            return _failure(f"PRIMS failed in {params.name}; its log says how.")

    async def list_templates(context: Context, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=resources.TEMPLATES)

    async def list_resources(context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        # Files are found through the results that name them: a list must not depend on who asks.
        return ListResourcesResult(resources=[app.PAGE])

    async def read_resource(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        if of_app := app.read(str(params.uri)):
            return of_app
        try:
            table, principal = await host.table(), host.principal(context.request)
            return await resources.read(table, str(params.uri), principal)
        except PrimsError as problem:
            raise MCPError(INVALID_PARAMS, plain(problem)) from None

    async def list_prompts(context: Context, params: PaginatedRequestParams | None) -> ListPromptsResult:
        return ListPromptsResult(prompts=[prompt.PROMPT])

    async def get_prompt(context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        try:
            return prompt.get(settings, params.name, params.arguments)
        except PrimsError as problem:
            raise MCPError(INVALID_PARAMS, plain(problem)) from None

    async def mend_and_note(ctx: Context, call_next: CallNext) -> HandlerResult:
        try:
            return await call_next(mended_context(ctx))
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
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )
    server.extensions = app.EXTENSIONS
    server.middleware.append(mend_and_note)
    return server


async def _session(host: Host, context: Context, session_id: str | None) -> Session:
    """Whose workspace a call uses: the ONE place where that is decided.

    An explicit id, else the transport's own session (stateful HTTP), else the process (stdio), else a new one.
    """
    table = await host.table()
    principal = host.principal(context.request)
    if session_id is not None:
        return table.get(session_id, principal)
    if context.request is None:
        return await host.process_session()
    # Never read from a header by hand: only what the transport itself has opened. (Private in SDK 2.3.)
    connection = context.session._connection
    if connection.session_id is not None:
        return await host.transport_session(connection, principal)
    return await table.create(principal)


async def _call(host: Host, context: Context, arguments: dict[str, Any], handler: Handler) -> CallToolResult:
    pump, asked = ProgressPump(), time.monotonic()
    # Older clients do not know links.
    links = is_version_at_least(context.protocol_version, "2025-06-18")

    async def work() -> CallToolResult:
        session = await _session(host, context, arguments.pop("session_id", None))
        return await handler(Call(arguments, session, await host.table(), host.settings, pump, asked, links))

    async def accompany() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(pump.run, context.session.report_progress))
            await host.until_gone(context.request)
            group.cancel_scope.cancel()

    # The pump ends before the answer is given: no progress may follow a result, nor come right with it.
    done = await alongside(work, accompany)
    return done if done is not None else _failure("The client has gone.")


async def _run_code(call: Call) -> CallToolResult:
    arguments, settings = call.arguments, call.settings
    admitted = policy.admit(
        settings,
        arguments["code"],
        arguments.get("requirements", ()),
        arguments.get("timeout_seconds"),
        arguments.get("network"),
    )
    for url, path in arguments.get("files", ()):
        await file_tools.mount(call, url, path, replace=False)
    run = call.table.start(call.session, admitted.request, call.pump.emit, asked=call.asked)
    try:
        result: RunResult = await run.wait()
    except asyncio.CancelledError:
        # The client has turned away: nobody waits for the run, so it need not go on.
        run.stop.set("cancelled")
        raise
    rendered = render(replace(result, feedback=(*admitted.notes, *result.feedback)), call.session.id, settings)
    content: list[ContentBlock] = [TextContent(type="text", text=rendered.text)]
    for image in rendered.images:
        data = base64.b64encode(image.data).decode("ascii")
        content.append(ImageContent(type="image", data=data, mime_type=image.mime))
    if call.links:
        content += _links(result, call.session)
    return CallToolResult(content=content, structured_content=rendered.structured, is_error=result.status != "ok")


def _links(result: RunResult, session: Session) -> list[ContentBlock]:
    """Files of a run as links that a client can follow."""
    return [
        ResourceLink(
            type="resource_link",
            name=artifact.name,
            uri=file_uri(session.id, artifact.relative_path),
            mime_type=artifact.mime,
            size=artifact.size,
            annotations=Annotations(audience=["user"]),
        )
        for artifact in result.artifacts[:_MOST_LINKS]
    ]


def _failure(text: str) -> CallToolResult:
    """A call that did nothing: PRIMS says why."""
    return CallToolResult(content=[TextContent(type="text", text=plain(text))], is_error=True)


def _told(problem: PrimsError) -> str:
    match problem:
        case InstallError():
            return f"The packages could not be installed, so the code was not run. {shorten_str(str(problem), 3000)}"
        case KernelStartError():
            return shorten_str(str(problem), 3000)
        case _:
            return str(problem)
