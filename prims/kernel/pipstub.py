"""The `pip` of a sandbox: says what is installed, and how to ask for more.

Copied into every throw-away venv as the package `pip`; standard library only, `packaging` when it is there.
It has nothing of pip but the words that people and tools look for.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

__version__ = "0+prims"

_WITH_VALUE = {
    "-r", "--requirement", "-c", "--constraint", "-i", "--index-url", "--extra-index-url", "-f",
    "--find-links", "-t", "--target", "--prefix", "--root", "--python", "--platform", "--proxy", "--timeout",
    "--trusted-host",
    "--upgrade-strategy", "--progress-bar", "--no-binary", "--only-binary", "-e", "--editable", "--cache-dir",
    "--retries", "--log", "--format",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run one pip command; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--version" in words or "-V" in words:
        here = Path(__file__).resolve().parent
        print(f"pip {__version__} from {here} (python {sys.version_info[0]}.{sys.version_info[1]})")
        return 0
    while words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        words.pop(0)
    command, words = (words[0], words[1:]) if words else ("help", [])
    if command == "install":
        return _install(words)
    if command in ("list", "freeze"):
        return _list(command, words)
    if command == "show":
        return _show(_split(words)[0])
    if command in ("help", "-h", "--help"):
        print("Usage: pip install | list | freeze | show\n\nThis pip installs nothing. " + _how(["six"]))
        return 0
    print(f"ERROR: pip {command} does not work in this sandbox. " + _how(["six"]), file=sys.stderr)
    return 1


def _how(names: list[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names if not re.search(r"[/\\@:]", name))
    if not listed:
        return "Only packages of the package index can be had, by name, in the `requirements` argument of run_code."
    return f"List packages in the `requirements` argument of run_code instead, e.g. requirements=[{listed}]."


def _split(words: list[str]) -> tuple[list[str], list[tuple[str, str | None]]]:
    """The positional words, and the options as (name, value or None)."""
    plain: list[str] = []
    options: list[tuple[str, str | None]] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            if equals:
                options.append((name, value))
            else:
                options.append((name, next(rest, None) if name in _WITH_VALUE else None))
        else:
            plain.append(word)
    return plain, options


def _install(words: list[str]) -> int:
    plain, options = _split(words)
    for name, value in options:
        if name in ("-r", "--requirement") and value:
            try:
                lines = Path(value).read_text(encoding="utf-8").splitlines()
            except OSError as e:
                print(f"ERROR: Could not open requirements file: {e}", file=sys.stderr)
                return 1
            lines = [re.split(r"(?:^|\s)#", line)[0].strip() for line in lines]
            plain += [line for line in lines if line and not line.startswith("-")]
        if name in ("-e", "--editable") and value:
            plain.append(value)
    if not plain:
        print("ERROR: You must give at least one requirement to install", file=sys.stderr)
        return 1
    quiet = any(name in ("-q", "-qq", "-qqq", "--quiet") for name, _ in options)
    missing = []
    for wanted in plain:
        version = _satisfied(wanted)
        if version is None:
            missing.append(wanted)
        elif version and not quiet:
            print(f"Requirement already satisfied: {wanted} ({version})")
    if not missing:
        return 0
    names = ", ".join(missing)
    print(f"ERROR: cannot install {names}: nothing is installed from inside. {_how(missing)}", file=sys.stderr)
    return 1


def _satisfied(wanted: str) -> str | None:
    """The installed version that satisfies a requirement; "" when it is not for this machine; else None."""
    if wanted in sys.stdlib_module_names:
        return "part of Python"
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)(\[.*\])?", wanted.strip())
        return _version(match[1]) if match else None
    try:
        requirement = Requirement(wanted)
    except InvalidRequirement:
        return None
    if requirement.marker is not None and not requirement.marker.evaluate():
        return ""
    version = _version(requirement.name)
    if version is None or requirement.url or not requirement.specifier.contains(version, prereleases=True):
        return None
    return version


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _installed() -> list[tuple[str, str]]:
    """Name → version, sorted as pip sorts; the first on the path wins, as in an import."""
    found: dict[str, tuple[str, str]] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), (name, distribution.version))
    return [found[key] for key in sorted(found)]


def _list(command: str, words: list[str]) -> int:
    rows = _installed()
    shape = next((value for name, value in _split(words)[1] if name == "--format"), None)
    if command == "freeze" or shape == "freeze":
        for name, version in rows:
            print(f"{name}=={version}")
    elif shape == "json":
        import json

        print(json.dumps([{"name": name, "version": version} for name, version in rows]))
    else:
        width = max([len("Package"), *(len(name) for name, _ in rows)])
        print(f"{'Package':<{width}} Version\n{'-' * width} -------")
        for name, version in rows:
            print(f"{name:<{width}} {version}")
    return 0


def _show(names: list[str]) -> int:
    status = 0 if names else 1
    for name in names:
        try:
            distribution = metadata.distribution(name)
        except (metadata.PackageNotFoundError, ValueError):
            print(f"WARNING: Package(s) not found: {name}", file=sys.stderr)
            status = 1
            continue
        about = distribution.metadata
        requires = ", ".join(re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in distribution.requires or ())
        fields = {
            "Name": about["Name"],
            "Version": distribution.version,
            "Summary": about["Summary"] or "",
            "Home-page": about["Home-page"] or "",
            "License": about["License-Expression"] or about["License"] or "",
            "Location": str(distribution.locate_file("")),
            "Requires": requires,
        }
        print("\n".join(f"{key}: {value}" for key, value in fields.items()))
    return status
