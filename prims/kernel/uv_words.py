"""What uv says when it fails, turned into one of our reasons and a sentence that says what to do. Pure.

Phrases are matched only where they hold a blank: a requirement holds none (prims.requirements sees to it), so
nobody can forge a reason by naming a package after it. Wordings of uv 0.13.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence

from prims.errors import InstallError, InstallReason
from prims.requirements import distribution_for, name_of

KERNEL_NAME = "ipykernel"

_MESSAGE_CHARS = 1400
_NAME = r"([A-Za-z0-9][A-Za-z0-9._-]*)"
_PYTHON = f"Python {sys.version_info[0]}.{sys.version_info[1]}"

_NO_SOLUTION = re.compile(r"No solution found when resolving")
_NOT_FOUND = re.compile(_NAME + r" (?:was|were) not found in the package registry")
_NO_WHEEL = (
    re.compile(rf"Wheels are (?:required|not available) for `{_NAME}`"),
    re.compile(_NAME + r"(?:[=<>!~]=?\S*)? (?:has|have) no (?:usable )?wheels"),
    re.compile(rf"only found wheels for `{_NAME}`"),
)
_HASH = re.compile(r"Hash mismatch for `([A-Za-z0-9][A-Za-z0-9._-]*)")
_DAMAGED = re.compile(
    rf"{_NAME}(?:==\S+)? has an invalid package format"
    rf"|Failed to download `{_NAME}[^`]*` cause: Failed to extract archive"
)
_NO_VERSION = re.compile(r"there (?:is|are) no versions? of | (?:is|are) available and you require ")
_OTHER_PYTHON = re.compile(r"Python version \S+ does not satisfy Python")
_NETWORK = re.compile(
    r"error sending request for url|Failed to fetch: |Request failed after \d|tcp connect error|dns error"
    r"|network was disabled|HTTP status (?:client|server) error|operation timed out|Failed to download "
)
_CAUSE_OF_NETWORK = re.compile(
    r"Connection refused|Name or service not known|failed to lookup address|operation timed out"
    r"|Network is unreachable|HTTP status (?:client|server) error \([^)]*\)|invalid peer certificate"
)
_PASSWORD = re.compile(r"//[^/\s@]*@")
_OTHER_FILE = "Try another version; the operator of this server should look at the index."
_FULL = "The operator of this server has to make room, or set another cache_dir."
# A few names that people mistype, to have something to compare an unknown name with.
_KNOWN_NAMES = (
    "beautifulsoup4", "fastapi", "flask", "httpx", "lxml", "matplotlib", "networkx", "numpy", "openpyxl",
    "pandas", "pillow",
    "plotly", "polars", "pyarrow", "pydantic", "pypdf", "pyyaml", "requests", "scikit-image",
    "scikit-learn", "scipy", "seaborn", "statsmodels", "sympy", "tabulate", "tqdm", "xlsxwriter",
)  # fmt: skip


def explain(text: str, asked: Sequence[str], *, code: int | None = None) -> InstallError:
    """The error for uv's output `text` and exit status `code`, when `asked` were the requirements."""
    log = _PASSWORD.sub("//***@", text)
    said = _joined(log)
    reason, message = _sentence(said, log, asked, code)
    message = "".join(c if c.isprintable() else " " for c in message[:_MESSAGE_CHARS])
    return InstallError(message, reason=reason, log=log)


def _sentence(said: str, log: str, asked: Sequence[str], code: int | None) -> tuple[InstallReason, str]:
    if found := _NOT_FOUND.search(said):
        return "unknown", _unknown(found[1], asked)
    if found := _HASH.search(said):
        return "other", (
            f"The file of {found[1]} that the package index gave is not the one whose hash it lists, so it was not "
            "installed. The operator of this server should look at the index."
        )
    if found := _DAMAGED.search(said):
        return "other", f"The file of {found[1] or found[2]} that the package index gave is damaged. {_OTHER_FILE}"
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return "other", "The packages could not be installed: the disk of the package cache is full. " + _FULL
    # Before the network: with a dead network uv may find no solution in what its cache holds.
    if _NETWORK.search(said):
        cause = _CAUSE_OF_NETWORK.search(said)
        return "network", (
            f"The package index could not be reached{f' ({cause[0]})' if cause else ''}, so the packages "
            "could not be installed. Try again later, or use only packages that are already there; the "
            "operator of this server may have to set a proxy or an index for uv."
        )
    if not _NO_SOLUTION.search(said):
        return "other", _other(log, code)
    why = _because(said)
    missing = _without_wheel(said)
    if missing and (_was_asked(missing, asked) or KERNEL_NAME not in said):
        return "no-wheel", (
            f"{missing} cannot be installed: what was asked for has only source distributions, or no wheel "
            f"for {_PYTHON} on this machine. Packages are not built from source here, because that would run "
            f"their build scripts outside the sandbox (the operator can allow it: --allow-sdists). "
            f"{_meant(distribution_for(missing)) or 'Try another version or another package.'} uv says: {why}"
        )
    if re.search(rf"\b{KERNEL_NAME}\b", said):
        return "conflict", (
            "These requirements cannot be installed beside the Jupyter kernel that runs the code. "
            f"Loosen or drop the pin. uv says: {why}"
        )
    if _OTHER_PYTHON.search(said):
        return (
            "conflict",
            f"A requirement needs another Python than the {_PYTHON} of this server. uv says: {why}",
        )
    if _NO_VERSION.search(said) and " depends on " not in said:
        return "unknown", f"There is no such version on the package index. uv says: {why}"
    return "conflict", f"These requirements contradict each other; loosen or drop a version. uv says: {why}"


def _joined(log: str) -> str:
    """uv's lines as one text, without the tree that it draws."""
    return re.sub(r"[\s╰├│─▶×]+", " ", log).strip()


def _because(said: str) -> str:
    """The heart of uv's derivation: the first step, and what was asked for, in some 600 characters."""
    start = said.find("Because ")
    whole = said[start:] if start >= 0 else said
    whole = whole.partition(" hint: ")[0].replace(", we can conclude that your requirements are unsatisfiable", "")
    if len(whole) <= 600:
        return whole
    first = whole.partition(", we can conclude")[0][:350]
    required = dict.fromkeys(re.findall(r"you require (\S+?)[,.]?(?=\s|$)", whole))
    return f"{first} … and you require {', '.join(required)[:200]}."


def _without_wheel(said: str) -> str | None:
    for pattern in _NO_WHEEL:
        if found := pattern.search(said):
            return re.split(r"[=<>!~]", found[1])[0]
    return None


def _was_asked(name: str, asked: Sequence[str]) -> bool:
    return any(name_of(entry) == name_of(name) for entry in asked)


def _unknown(name: str, asked: Sequence[str]) -> str:
    if not _was_asked(name, asked):
        return f"There is no package {name} on the package index; something that was asked for depends on it."
    close = difflib.get_close_matches(name, _KNOWN_NAMES, n=1, cutoff=0.8)
    hint = _meant(distribution_for(name) or next(iter(close), None))
    hint = hint or "Check its spelling: the name to import may differ from it."
    return f"There is no package {name} on the package index. {hint}"


def _meant(name: str | None) -> str:
    return f"Did you mean {name}?" if name else ""


def _other(log: str, code: int | None) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("Using ")]
    telling = [line for line in lines if line.startswith(("error:", "cause:"))] or lines[-5:]
    end = f"exit status {code}" if code is None or code >= 0 else f"killed by signal {-code}"
    return f"The packages could not be installed (uv: {end}). {' '.join(telling)[:1000]}"
