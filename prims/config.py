"""Settings: flags over `PRIMS_*` environment over defaults. The only reader of `os.environ`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from prims.errors import ConfigError
from prims.model import Limits

ISOLATION_CHOICES = ("auto", "bubblewrap", "landlock", "none")
FORK_CHOICES = ("auto", "off")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _setting(default: Any, help: str, *, unit: str = "", least: float | None = None) -> Any:
    return field(default=default, metadata={"help": help, "unit": unit, "least": least})


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "prims"


def _default_state() -> Path:
    # Short, because a unix socket's path has room for 107 bytes only.
    return Path(tempfile.gettempdir()) / f"prims-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decided. Sizes are bytes, times are seconds, `None` is unlimited."""

    isolation: str = _setting("auto", "walls to build: " + ", ".join(ISOLATION_CHOICES))
    cache_dir: Path = field(
        default_factory=_default_cache, metadata={"help": "where package layers are kept between runs"}
    )
    state_dir: Path = field(
        default_factory=_default_state, metadata={"help": "where sessions and runs live while they live"}
    )
    default_packages: tuple[str, ...] = _setting(
        ("pandas", "numpy", "matplotlib", "openpyxl", "requests"),
        "packages that every run has, comma-separated",
    )
    code_bytes: int = _setting(200_000, "longest code of one call", unit="bytes", least=1)
    run_seconds: float = _setting(100.0, "time a run has when the call names none", unit="seconds", least=0.1)
    max_run_seconds: float | None = _setting(600.0, "longest time a call may ask for", unit="seconds", least=0.1)
    install_seconds: float = _setting(180.0, "time to resolve and install a call's packages", unit="seconds", least=1)
    output_bytes: int | None = _setting(512 << 20, "text and displays one run may publish", unit="bytes", least=1024)
    memory_bytes: int | None = _setting(2 << 30, "memory of one run, all its processes", unit="bytes", least=256 << 20)
    processes: int | None = _setting(256, "processes and threads of one run", least=32)
    open_files: int | None = _setting(1024, "open files of one process", least=64)
    file_bytes: int | None = _setting(1 << 30, "largest file a run may write", unit="bytes", least=1 << 20)
    tmp_bytes: int = _setting(256 << 20, "size of a run's private /tmp", unit="bytes", least=1 << 20)
    concurrent_runs: int = _setting(8, "runs at once on this machine", least=1)
    queued_runs: int = _setting(64, "calls that may wait for their turn", least=0)
    spare_kernels: int = _setting(2, "fresh kernels kept ready for the next calls", least=0)
    fork_kernels: str = _setting("auto", "fork kernels from a preloaded parent: " + ", ".join(FORK_CHOICES))
    reply_chars: int = _setting(14_000, "characters of text in one reply", least=1000)
    image_bytes: int = _setting(150_000, "largest image sent inline", unit="bytes", least=1000)
    images_bytes: int = _setting(450_000, "all images of one reply together", unit="bytes", least=0)

    def limits(self, timeout_seconds: float | None = None) -> Limits:
        """The limits of one run; the call's own time limit, when given, was checked by the policy."""
        return Limits(
            run_seconds=self.run_seconds if timeout_seconds is None else timeout_seconds,
            memory_bytes=self.memory_bytes,
            processes=self.processes,
            open_files=self.open_files,
            file_bytes=self.file_bytes,
            output_bytes=self.output_bytes,
            tmp_bytes=self.tmp_bytes,
        )


def load(flags: Mapping[str, str | None] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from `flags` (field name → text, None = not given), then `PRIMS_*`, then defaults.

    Raises:
        ConfigError: a name is unknown, or a value cannot be read or is out of range.
    """
    environ = os.environ if environ is None else environ
    hints = get_type_hints(Settings)
    known = {f.name: f for f in fields(Settings)}
    values: dict[str, Any] = {}
    for key, text in environ.items():
        if key.startswith("PRIMS_"):
            name = key[len("PRIMS_") :].lower()
            if name not in known:
                raise ConfigError(f"{key} is not a setting of PRIMS; known are: {_names(known)}")
            values[name] = _read(key, text, hints[name], known[name].metadata)
    for name, flag in (flags or {}).items():
        if name not in known:
            raise ConfigError(f"{name} is not a setting of PRIMS; known are: {_names(known)}")
        if flag is not None:
            values[name] = _read("--" + name.replace("_", "-"), flag, hints[name], known[name].metadata)
    settings = Settings(**values)
    if settings.isolation not in ISOLATION_CHOICES:
        raise ConfigError(f"isolation must be one of {', '.join(ISOLATION_CHOICES)}, not {settings.isolation!r}")
    if settings.fork_kernels not in FORK_CHOICES:
        raise ConfigError(f"fork_kernels must be one of {', '.join(FORK_CHOICES)}, not {settings.fork_kernels!r}")
    if settings.max_run_seconds is not None and settings.run_seconds > settings.max_run_seconds:
        raise ConfigError("run_seconds is above max_run_seconds; raise the second or lower the first")
    return settings


def tool_environment() -> dict[str, str]:
    """The environment for uv and other trusted tools of the server: ours, without what redirects Python."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PRIMS_"))}


def inside_docker() -> bool:
    """Whether this looks like a container, for advice only."""
    return Path("/.dockerenv").exists() or "container" in os.environ


def _names(known: Mapping[str, Any]) -> str:
    return ", ".join(f"PRIMS_{name.upper()}" for name in known)


def _read(where: str, text: str, hint: Any, meta: Mapping[str, Any]) -> Any:
    """One value from text, by the field's type; `2G`, `none` and comma lists are understood."""
    optional = type(None) in get_args(hint)
    if optional and text.strip().lower() == "none":
        return None
    kind = next(a for a in get_args(hint) if a is not type(None)) if optional else hint
    if kind is str:
        return text.strip()
    if kind is Path:
        return Path(text).expanduser().absolute()
    if get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)i?b?\s*", text, re.IGNORECASE)
    if not match:
        what = "a number or none" if optional else "a number"
        raise ConfigError(f"{where} must be {what}, not {text!r}")
    number = float(match[1]) * _UNITS[match[2].lower()]
    if meta["least"] is not None and number < meta["least"]:
        raise ConfigError(f"{where} must be at least {meta['least']:g}, not {text!r}")
    return kind(number)
