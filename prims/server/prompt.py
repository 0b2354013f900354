"""The prompt `python_programmer`: a task, and how code runs here."""

from __future__ import annotations

from collections.abc import Mapping

from mcp.types import GetPromptResult, Prompt, PromptArgument, PromptMessage, TextContent

from prims.config import Settings
from prims.errors import Refused
from prims.kernel.text import plain

PROMPT = Prompt(
    name="python_programmer",
    title="Solve a task with Python",
    description="Have a task solved by Python code that is run with run_code.",
    arguments=[
        PromptArgument(name="task", description="What is to be done.", required=True),
        PromptArgument(name="mounted_files", description="Files that are in mounts/, if any.", required=False),
    ],
)


def network_words(settings: Settings) -> str:
    """What code has of the network, in a sentence."""
    match settings.network:
        case "none":
            return "There is no network inside."
        case "allow-list":
            return f"Of the network, HTTP and HTTPS reach {', '.join(settings.allow_network[:20])}, and nothing else."
        case _:
            return "Of the network, HTTP and HTTPS reach public hosts; nothing else does."


def get(settings: Settings, name: str, arguments: Mapping[str, str] | None) -> GetPromptResult:
    """The prompt as messages.

    Raises:
        Refused: there is no such prompt, or it lacks its task.
    """
    if name != PROMPT.name:
        raise Refused(f"There is no prompt {name!r} here; there is {PROMPT.name}.")
    given = dict(arguments or {})
    task = plain(given.pop("task", "")).strip()
    files = plain(given.pop("mounted_files", "")).strip()
    if given:
        raise Refused(f"{PROMPT.name} takes task and mounted_files, not {', '.join(given)}.")
    if not task:
        raise Refused(f"{PROMPT.name} needs a task.")
    packages = ", ".join(settings.default_packages) or "none but the standard library's"
    mounted = f"These files are mounted, read-only: {files}.\n" if files else ""
    text = f"""Solve this task by running Python with the tool run_code.

Task: {task}
{mounted}
How code runs here:
- Every call starts a fresh interpreter: define or load again what you need. Files stay: read inputs from mounts/, write
  results to output/.
- The value of a last expression is returned; print() whatever else you need to see. Figures are returned as pictures.
- Installed packages: {packages}. Name others in requirements.
- {network_words(settings)} Bring data in with mount_file.
- A call has {settings.run_seconds:g} seconds unless timeout_seconds asks for more.
- Keep output short: look at shapes and heads, not at whole tables.
- When a call fails, read the error and its line, and mend the cause."""
    return GetPromptResult(
        description=PROMPT.description,
        messages=[PromptMessage(role="user", content=TextContent(type="text", text=text))],
    )
