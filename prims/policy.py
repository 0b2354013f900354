"""What the operator allows: a call's arguments → an admitted `RunRequest`, or `Refused` with what to do. Pure."""

from __future__ import annotations

import ast
import html
import json
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prims import requirements as reqs
from prims.config import NETWORKS, Settings
from prims.errors import Refused
from prims.model import Cell, Network, RunRequest

_FENCE = re.compile(
    r"\A(?P<before>\s*)(?P<ticks>`{3,}|~{3,})[ \t]*(?P<info>[^\n`]*)\n(?P<code>.*?)\n?[ \t]*(?P=ticks)[ \t]*\s*\Z", re.S
)
# The name of the language, which a fence leaves behind where only its ticks were taken off.
_LANGUAGE = re.compile(r"\A(\s*)(?:python3?|py|ipython)[ \t]*(?=\n\s*\S)")
# How code asks for packages: by magics and lines of a shell, by texts for a shell, by lists of words for subprocess.
# All parts are bounded, as code can be one line of 200,000 characters.
_INSTALL = r"pip[\d.]*(?:[ \t]+-\S+)*[ \t]+install[ \t]+"
_LINE = rf"[ \t]*(?:(?:sudo|uv|\S+[ \t]+-m)[ \t]+)*{_INSTALL}(?P<line>(?:\\\n|[^\n])+)"
_PIP_OF_SHELL = re.compile(rf"^{_LINE}", re.M)
_PIP = re.compile(
    rf"^(?:[\w, \t]{{1,200}}=)?[ \t]*[%!]{{1,2}}{_LINE}"
    r"|\b(?:system|run|call|check_call|check_output|Popen|getoutput)\([^\n]{0,200}?"
    rf"""\b{_INSTALL}(?P<text>[^\n"']{{1,1000}})["']"""
    r"""|(?:["']pip[\d.]*["'][ \t]*,\s*|\bmain\(\[)["']install["']\s*,"""
    r"""(?P<words>(?:[^\[\]]|\[[^\[\]]{0,200}\]){1,400})\]""",
    re.M,
)
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]*\])?([<>=!~]=?=?[A-Za-z0-9.*,<>=!~]+)?")
# Options of pip and uv whose value could be taken for a name.
_WITH_VALUE = re.compile(
    r"-[cefiprt]|--(?:cache-dir|constraint|editable|index|index-strategy|log|no-binary|only-binary|platform|prefix"
    r"|progress-bar|proxy|python|python-version|requirement|retries|root|src|target|timeout|trusted-host"
    r"|upgrade-strategy)"
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may run, and what its author should know about how it was read."""

    request: RunRequest
    notes: tuple[str, ...] = ()


def admit(
    settings: Settings,
    code: str,
    requirements: Sequence[str] = (),
    timeout_seconds: float | None = None,
    network: str | None = None,
    cells: Sequence[Cell] = (),
) -> Admitted:
    """Check a call against the operator's limits. `cells` of a notebook, when given, are run in place of `code`.

    Raises:
        Refused: the code is empty or too long, the time is out of range, a requirement is not one, or more of the
            network is asked for than there is.
    """
    if cells:
        code = "\n".join(cell.code for cell in cells)
    size = len(code.encode("utf-8", "replace"))
    if size > settings.code_bytes:
        raise Refused(
            f"The code has {size:,} bytes; at most {settings.code_bytes:,} are taken. "
            "Put data into a file and long code into modules in the workspace."
        )
    if "\0" in code:
        raise Refused("The code holds a NUL character, which Python does not take.")
    cleaned = code if cells else clean_code(code)
    if not cleaned.strip():
        raise Refused("There is no code to run.")
    if _is_notebook(cleaned):
        raise Refused("The code is a notebook file (JSON). Send the source of its code cells as it stands in them.")
    wanted = [*requirements, *reqs.inline(cleaned), *_pip_lines(cleaned)]
    parsed = reqs.parse(wanted)
    notes = tuple(f"{name} is part of Python itself and was left out of the requirements." for name in parsed.ignored)
    limits = settings.limits(_seconds(settings, timeout_seconds))
    if network is not None:
        limits = replace(limits, network=_network(settings, network))
    return Admitted(RunRequest(cleaned, parsed.requirements, limits, tuple(cells)), notes)


def _seconds(settings: Settings, wanted: float | None) -> float | None:
    if wanted is None:
        return None
    if not wanted > 0:
        raise Refused("timeout_seconds must be above 0.")
    most = settings.max_run_seconds
    if most is not None and wanted > most:
        raise Refused(f"timeout_seconds may be at most {most:g} here; split the work or ask for less time.")
    return wanted


def _network(settings: Settings, wanted: str) -> Network:
    allowed = NETWORKS[: NETWORKS.index(settings.network) + 1]
    for network in allowed:
        if network == wanted:
            return network
    raise Refused(f"network may be {' or '.join(allowed)} here, not {wanted!r}; the operator decides what is the most.")


def clean_code(code: str) -> str:
    """The code without what models wrap around it; line numbers stay those of the code as sent.

    Removed are a byte order mark, carriage returns, one outermost markdown fence, an indent that all lines share, and
    the prompts and outputs of a Python shell. What was escaped once too often is unescaped.
    """
    code = code.encode("utf-8", "replace").decode("utf-8").removeprefix("\ufeff")
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    code = _LANGUAGE.sub(r"\1", code)
    if not _parses(code):
        code = _unescaped(code)
    if not _parses(code):
        code = _without_prompts(code)
        code = _without_fence(code)
    if re.match(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]+[^\s#]", code) and not _parses(code):
        code = _without_indent(code)
    return _with_leading_lines(code)


def _unescaped(code: str) -> str:
    """Code that was escaped once too often, for a page or as JSON, if that is all that is wrong with it."""
    for form in (html.unescape(code), code.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')):
        if form != code and ("\n" not in code.strip() or form.count("\n") == code.count("\n")) and _parses(form):
            return form
    return code


def _without_prompts(code: str) -> str:
    """Of a session in a Python shell only what was typed; the lines of its output stay as empty ones."""
    if not code.lstrip().startswith(">>> "):
        return code
    typed = (re.match(r"[ \t]*(?:>>>|\.\.\.)(?: (.*))?$", line) for line in code.split("\n"))
    return "\n".join(line[1] or "" if line else "" for line in typed)


def _without_fence(code: str) -> str:
    """Without an outermost fence; its line stays as an empty one, so that line numbers do not move."""
    fence = _FENCE.match(code)
    if fence:
        if fence["ticks"] not in fence["code"].split("\n") or _parses(textwrap.dedent(fence["code"])):
            return re.sub(r"[^\n]", "", code[: fence.start("code")]) + fence["code"] + "\n"
        return code
    # One that was never closed, or never opened: a line of ticks is no Python wherever it stands.
    lines = code.split("\n")
    fences = [n for n, line in enumerate(lines) if re.match(r"[ \t]*(?:`{3,}|~{3,})", line)]
    text = [n for n, line in enumerate(lines) if line.strip()]
    if len(fences) == 1 and fences[0] in (text[0], text[-1]):
        lines[fences[0]] = ""
    return "\n".join(lines)


def _without_indent(code: str) -> str:
    """Without the indent that all lines share, whatever comments do."""
    dedented = textwrap.dedent(code)
    if dedented != code:
        return dedented
    lines = code.split("\n")
    code_lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    least = min((len(line) - len(line.lstrip()) for line in code_lines), default=0)
    without = "\n".join(line[least:] if line[:least].isspace() else line for line in lines)
    return without if _parses(without) else code


def _with_leading_lines(code: str) -> str:
    """IPython drops empty lines at the start, and all line numbers would shift."""
    rest = code.lstrip("\n \t")
    at = code.rfind("\n", 0, len(code) - len(rest)) + 1
    if at == 0 or not rest or rest.startswith("%%"):
        return code
    return "#\n" * code.count("\n", 0, at) + code[at:]


def _is_notebook(code: str) -> bool:
    if not code.lstrip().startswith("{") or '"cells"' not in code:
        return False
    try:
        return isinstance(json.loads(code).get("cells"), list)
    except (ValueError, RecursionError):
        return False


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _pip_lines(code: str) -> list[str]:
    """Packages that the code itself asks for by `%pip install` and the like: there is no network inside, so they are
    had beforehand like the requirements. Options are left out; what is no plain name stays for pip to refuse."""
    code = re.sub(r"^[ \t]*#[^\n]*", "", code, flags=re.M)
    shell = re.match(r"\s*%%(?:bash|sh|script|system|!)", code)
    found: list[str] = []
    for match in (_PIP_OF_SHELL if shell else _PIP).finditer(code):
        groups = match.groupdict("")
        if groups.get("words"):
            words = [word for _, word in re.findall(r"""(["'])([^"'\n]+)\1""", groups["words"])]
        else:
            words = _words(groups["line"] or groups["text"])
        for before, word in zip(["", *words], words, strict=False):
            name = re.sub(r"[ \t]", "", word)
            if _PACKAGE.fullmatch(name) and not _WITH_VALUE.fullmatch(before):
                found.append(name)
    return found


def _words(line: str) -> list[str]:
    """The words of a shell's command, up to where another one or a file for its output begins."""
    line = line[:2000].replace("\\\n", " ")
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    found: list[str] = []
    for word in words:
        word, end, _ = word.partition(";")
        if re.match(r"\d?[<>&|]", word):
            break
        found.append(word)
        if end and " " not in word:
            break
    return found
