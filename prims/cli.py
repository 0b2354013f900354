"""The command line: wiring only. `prims` on a terminal prints help; with a pipe on stdin it serves."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields

from prims import __version__, config
from prims.errors import ConfigError, PrimsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; gives the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    if not arguments:
        if sys.stdin is None or sys.stdin.isatty():
            parser.print_help()
            return 0
        arguments = ["serve"]
    options = parser.parse_args(arguments)
    try:
        flags = {f.name: _joined(getattr(options, f.name, None)) for f in fields(config.Settings)}
        settings = config.load(flags, file=options.config)
    except ConfigError as problem:
        print(f"prims: {problem}", file=sys.stderr)
        return 2
    if os.geteuid() == 0:
        os.umask(0o022)  # the uids that root gives to code must be able to read what is made for them
    match options.command:
        case "serve":
            # Loading is a tenth faster without the collector, which finds nothing to do then. `Host` turns it on again.
            gc.disable()
            if options.show_config:
                print(config.shown(settings))
                return 0
            if settings.transport == "http":
                from prims.server import http

                return _told(lambda: http.serve(settings))
            from prims.server import stdio

            return stdio.serve(settings)
        case "run":
            from prims.run import run_file

            return _told(lambda: run_file(settings, options))
        case _:
            from prims.doctor import doctor

            return _told(lambda: doctor(settings, as_json=options.json))


def _joined(given: str | list[str] | None) -> str | None:
    return ",".join(given) if isinstance(given, list) else given


def _told(work: Callable[[], int]) -> int:
    try:
        return work()
    except ConfigError as problem:
        print(f"prims: {problem}", file=sys.stderr)
        return 2
    except PrimsError as problem:
        print(f"prims: {problem}", file=sys.stderr)
        return 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="prims", description="Run Python for LLM agents in throw-away sandboxes.")
    parser.add_argument("--version", action="version", version=f"prims {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = commands.add_parser("serve", help="speak MCP on stdin and stdout")
    run = commands.add_parser("run", help="run a script or a notebook in a sandbox, as a client's call would")
    run.add_argument("file", help="a Python file, a notebook (.ipynb), or - for a script on stdin")
    run.add_argument("--with", dest="requirements", action="append", default=[], metavar="REQ", help="a package")
    run.add_argument("--timeout", type=float, metavar="S", help="seconds the code may run")
    run.add_argument(
        "--mount", action="append", default=[], metavar="PATH", help="a local file to be read as mounts/NAME"
    )
    run.add_argument("--output", default="output", metavar="DIR", help="where files and pictures go (default: output)")
    run.add_argument(
        "--notebook", metavar="FILE", help="write what was run and what it gave as a notebook (.ipynb, .py or .html)"
    )
    run.add_argument("--inplace", action="store_true", help="write the outputs into the notebook that is run")
    run.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="set a name in a notebook, after its cell tagged parameters",
    )  # fmt: skip
    run.add_argument("--json", action="store_true", help="print the structured result instead of text")
    doctor = commands.add_parser("doctor", help="what holds on this machine, and what to do about what does not")
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    serve.add_argument("--show-config", action="store_true", help="print the settings in force and stop")
    for command in (serve, run, doctor):
        _add_settings(command)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings (also PRIMS_NAME in the environment; sizes as 2G, unlimited as none)")
    group.add_argument("--config", metavar="FILE", help="a TOML file with settings; flags and environment go first")
    for setting in fields(config.Settings):
        if setting.metadata.get("secret"):
            continue
        group.add_argument(
            "--" + setting.name.replace("_", "-"),
            dest=setting.name,
            metavar="VALUE",
            # Lists grow with each use of their flag.
            action="append" if str(setting.type).startswith("tuple") else "store",
            help=setting.metadata["help"].replace("%", "%%"),
        )
