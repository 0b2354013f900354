"""Settings: flags over `PRIMS_*` environment over defaults. The only reader of `os.environ`."""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from prims.errors import ConfigError
from prims.model import Limits, Network, PictureBudget

SWITCH = ("auto", "off")
NETWORKS: tuple[Network, ...] = get_args(Network)  # each allows what those before it do

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _setting(
    default: Any, help: str, *, unit: str = "", least: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    if choices:
        help += ": " + ", ".join(choices)
    return field(default=default, metadata={"help": help, "unit": unit, "least": least, "choices": choices})


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "prims"


def _default_state() -> Path:
    # Short, because a unix socket's path has room for 107 bytes only.
    return Path(tempfile.gettempdir()) / f"prims-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decided. Sizes are bytes, times are seconds, `None` is unlimited."""

    isolation: str = _setting("auto", "walls to build", choices=("auto", "bubblewrap", "landlock", "none"))
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
    allow_sdists: bool = _setting(False, "build packages that have no wheel from source, in walls of their own")
    code_bytes: int = _setting(200_000, "longest code of one call", unit="bytes", least=1)
    run_seconds: float = _setting(100.0, "time a run has when the call names none", unit="seconds", least=0.1)
    max_run_seconds: float | None = _setting(600.0, "longest time a call may ask for", unit="seconds", least=0.1)
    install_seconds: float = _setting(180.0, "time to resolve and install a call's packages", unit="seconds", least=1)
    output_bytes: int | None = _setting(512 << 20, "text and displays one run may publish", unit="bytes", least=1024)
    memory_bytes: int | None = _setting(2 << 30, "memory of one run, all its processes", unit="bytes", least=256 << 20)
    cgroups: str = _setting("auto", "bound a run's memory by a cgroup, where there can be one", choices=SWITCH)
    cpu_seconds: float | None = _setting(None, "processor time of one run, all its processes", unit="seconds", least=1)
    processes: int | None = _setting(256, "processes and threads of one run", least=32)
    open_files: int | None = _setting(1024, "open files of one process", least=64)
    file_bytes: int | None = _setting(1 << 30, "largest file a run may write", unit="bytes", least=1 << 20)
    tmp_bytes: int = _setting(256 << 20, "size of a run's private /tmp", unit="bytes", least=1 << 20)
    network: str = _setting("none", "most that a run may have of the network", choices=NETWORKS)
    allow_network: tuple[str, ...] = _setting(
        (), "HOST[:PORT]s that code may reach by HTTP(S) with --network allow-list, *.HOST for all below one"
    )
    network_bytes: int | None = _setting(1 << 30, "bytes one run may send and receive", unit="bytes", least=1024)
    concurrent_runs: int = _setting(8, "runs at once on this machine", least=1)
    queued_runs: int = _setting(64, "calls that may wait for their turn", least=0)
    spare_kernels: int = _setting(2, "fresh kernels kept ready for the next calls", least=0)
    fork_kernels: str = _setting("auto", "fork kernels from a preloaded parent", choices=SWITCH)
    workspace_bytes: int | None = _setting(4 << 30, "bytes in a session's workspace", unit="bytes", least=1 << 20)
    workspace_files: int | None = _setting(50_000, "files and folders in a session's workspace", least=100)
    notebook_bytes: int | None = _setting(
        32 << 20, "what is kept of a session's runs for its notebook", unit="bytes", least=1 << 16
    )
    sessions: int = _setting(64, "sessions at once", least=1)
    session_idle_seconds: float = _setting(
        1800.0, "time after which an unused session of an HTTP client ends", unit="seconds", least=1
    )
    download_bytes: int = _setting(1 << 30, "largest file that is mounted", unit="bytes", least=1024)
    upload_bytes: int = _setting(1 << 30, "largest file that is uploaded", unit="bytes", least=1024)
    transfer_seconds: float = _setting(300.0, "time of one download or upload", unit="seconds", least=1)
    allow_host: tuple[str, ...] = _setting(
        (), "private HOST[:PORT]s that files may be had from and sent to, comma-separated"
    )
    allow_dir: tuple[str, ...] = _setting((), "folders that local files may be mounted from, comma-separated")
    transport: str = _setting("stdio", "how clients connect", choices=("stdio", "http"))
    host: str = _setting("127.0.0.1", "address to listen on (http)")
    port: int = _setting(8000, "port to listen on, 0 for a free one (http)", least=0)
    http_hosts: tuple[str, ...] = _setting((), "further names that clients may call this server by, comma-separated")
    cors_origins: tuple[str, ...] = _setting((), "web origins that may use this server, comma-separated")
    request_bytes: int = _setting(4 << 20, "largest request (http)", unit="bytes", least=1024)
    token: str = field(
        default="", metadata={"help": "the bearer token itself; in the environment only", "secret": True}
    )
    token_file: str = _setting("", "file with the bearer token that clients must send (http)")
    jwt_issuer: str = _setting("", "issuer of the JWTs that clients must send (http)")
    jwt_audience: str = _setting("", "audience of those JWTs")
    jwt_jwks_url: str = _setting("", "where the keys of those JWTs are")
    insecure_no_auth: bool = _setting(False, "listen on other addresses than loopback without authentication")
    reply_chars: int = _setting(14_000, "characters of text in one reply", least=1000)
    image_pixels: int = _setting(1568, "longer edge of a picture in a reply", unit="pixels", least=64)
    image_bytes: int = _setting(150_000, "bytes of one picture in a reply", unit="bytes", least=1000)
    images_bytes: int = _setting(500_000, "all pictures of one reply together", unit="bytes", least=0)

    @property
    def pictures(self) -> PictureBudget:
        """What the pictures of one reply may take."""
        return PictureBudget(self.image_pixels, self.image_bytes, self.images_bytes)

    def limits(self, timeout_seconds: float | None = None) -> Limits:
        """The limits of one run; the call's own time limit, when given, was checked by the policy."""
        return Limits(
            run_seconds=self.run_seconds if timeout_seconds is None else timeout_seconds,
            memory_bytes=self.memory_bytes,
            cpu_seconds=self.cpu_seconds,
            processes=self.processes,
            open_files=self.open_files,
            file_bytes=self.file_bytes,
            output_bytes=self.output_bytes,
            tmp_bytes=self.tmp_bytes,
            network=cast(Network, self.network),
            network_hosts=self.allow_network,
            network_bytes=self.network_bytes,
        )


def load(
    flags: Mapping[str, str | None] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    file: str | None = None,
) -> Settings:
    """Settings from `flags` (field name → text, None = not given), `PRIMS_*`, a TOML `file`, then defaults.

    Raises:
        ConfigError: a name is unknown, or a value cannot be read or is out of range.
    """
    environ = os.environ if environ is None else environ
    hints = get_type_hints(Settings)
    known = {f.name: f for f in fields(Settings)}
    values: dict[str, Any] = {}
    path = file or environ.get("PRIMS_CONFIG")
    for name, value in _toml(path).items() if path else ():
        if name not in known:
            raise ConfigError(f"{name} in {path} is not a setting of PRIMS; known are: {', '.join(known)}")
        values[name] = _read(f"{name} in {path}", _as_text(value), hints[name], known[name].metadata)
    for key, text in environ.items():
        if key == "PRIMS_CONFIG":
            continue
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
    _check_network(settings)
    if settings.port > 65535:
        raise ConfigError(f"port must be at most 65535, not {settings.port}")
    if settings.max_run_seconds is not None and settings.run_seconds > settings.max_run_seconds:
        raise ConfigError("run_seconds is above max_run_seconds; raise the second or lower the first")
    return settings


def _check_network(settings: Settings) -> None:
    if settings.allow_network:
        from prims.hosts import Reachable

        try:
            Reachable(settings.allow_network)
        except ValueError as problem:
            raise ConfigError(f"allow_network: {problem}") from None
        if settings.network == "none":
            raise ConfigError("allow_network names hosts, but network is none; set network to allow-list")
    elif settings.network == "allow-list":
        raise ConfigError("network is allow-list, but allow_network names no host")


def shown(settings: Settings) -> str:
    """The settings in force as TOML, without secrets."""
    lines = []
    for setting in fields(Settings):
        value = getattr(settings, setting.name)
        if setting.metadata.get("secret"):
            value = "(set)" if value else ""
        lines.append(f"{setting.name} = {_as_toml(value)}")
    return "\n".join(lines)


def _as_toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        return "[" + ", ".join(json.dumps(item) for item in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)


def _toml(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ConfigError(f"the settings in {path} cannot be read: {problem}") from problem


def _as_text(value: Any) -> str:
    """A value of a TOML file in the spelling of flags."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        if any("," in str(item) for item in value):
            raise ConfigError(f"a list in a settings file holds an item with a comma: {value!r}")
        return ",".join(map(str, value))
    return str(value)


def tool_environment() -> dict[str, str]:
    """The environment for uv and other trusted tools of the server: ours, without what redirects Python."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PRIMS_"))}


def inside_container() -> bool:
    """Whether this looks like a container, for advice only."""
    files = ("/.dockerenv", "/run/.containerenv")
    return any(map(os.path.exists, files)) or not {"container", "KUBERNETES_SERVICE_HOST"}.isdisjoint(os.environ)


def _names(known: Mapping[str, Any]) -> str:
    return ", ".join(f"PRIMS_{name.upper()}" for name in known)


def _read(where: str, text: str, hint: Any, meta: Mapping[str, Any]) -> Any:
    """One value from text, by the field's type; `2G`, `none` and comma lists are understood."""
    optional = type(None) in get_args(hint)
    if optional and text.strip().lower() == "none":
        return None
    kind = next(a for a in get_args(hint) if a is not type(None)) if optional else hint
    if kind is str:
        choices = meta.get("choices")
        if choices and text.strip() not in choices:
            raise ConfigError(f"{where} must be one of {', '.join(choices)}, not {text!r}")
        return text.strip()
    if kind is bool:
        if text.strip().lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise ConfigError(f"{where} must be true or false, not {text!r}")
        return text.strip().lower() in ("true", "1", "yes")
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
