"""What README and docs show is true: commands exist, JSON parses, Python runs, tables name what is there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from prims import cli, config
from prims.run import _EXIT
from prims.server.file_tools import TOOLS
from prims.server.render import OUTPUT_SCHEMA
from prims.server.tools import _run_parameters
from tests import kit

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PROSE = re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S)
TEXTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def table(first_heading: str) -> list[list[str]]:
    """The rows of the README table whose first column has that heading."""
    lines = README.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def code(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def child_environment(state: Path) -> dict[str, str]:
    """A user's environment in which `prims` of this interpreter is found first."""
    environment = dict(kit.server_environment(state))
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    return environment


@pytest.mark.parametrize("text", blocks("json"))
def test_each_client_configuration_is_json_that_starts_a_server(text: str) -> None:
    configuration = json.loads(text)
    [servers] = configuration.values()
    for server in servers.values():
        arguments = server["args"][2:] if server["args"][:2] == ["-m", "prims"] else server["args"]
        assert cli._parser().parse_args(arguments).command == "serve"
        config.load(environ=server.get("env", {}))


def test_the_readme_shows_configurations_and_python() -> None:
    assert len(blocks("json")) >= 3
    assert len(blocks("python")) >= 2
    assert len(blocks("sh")) >= 3
    assert len(blocks("toml")) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("text", blocks("python"))
def test_each_python_snippet_runs(text: str, state: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=state, env=child_environment(state), capture_output=True, text=True, timeout=kit.SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_each_command_line_shown_is_one_that_exists() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    shown = [line.split("| ")[-1] for line in lines if "prims" in line]
    assert shown
    for line in shown:
        assert cli._parser().parse_args(shlex.split(line)[1:]).command
    scripts = [line for line in lines if line.startswith("sh ")]
    assert scripts == ["sh scripts/demo.sh", "sh scripts/test.sh"]
    for script in scripts:
        path = ROOT / script.split()[1]
        subprocess.run(["sh", "-n", path], check=True, timeout=20)


def test_files_and_flags_that_the_readme_names_exist() -> None:
    known = {option for action in _all_actions() for option in action.option_strings}
    words = [word for text in code(PROSE) for word in text.split()]
    flags = {word for word in words if re.match(r"--\w", word)}
    assert {"--isolation", "--mount"} <= flags <= known
    names = re.findall(r"\]\(([\w./-]+)\)", README)
    names += [word for word in words if re.match(r"(scripts|examples|requirements|\.ci|docs)/", word)]
    names += re.findall(r"\bbenchmarks/\w+\.py", README)
    assert names
    for name in names:
        assert (ROOT / name).exists(), name


def test_files_that_the_docs_name_exist() -> None:
    for text in TEXTS:
        for name in re.findall(r"`((?:tests|docs|examples|prims)/[\w/]+\.\w+)`", text.read_text("utf-8")):
            assert (ROOT / name).exists(), f"{text.name} names {name}"


def _all_actions() -> list[object]:
    parser = cli._parser()
    [commands] = [action for action in parser._actions if action.dest == "command"]
    return [a for p in (parser, *commands.choices.values()) for a in p._actions]


def test_the_settings_table_has_each_setting_with_its_default() -> None:
    rows, settings = table("flag"), fields(config.Settings)
    assert [code(row[1]) for row in rows] == [[f"PRIMS_{setting.name.upper()}"] for setting in settings]
    defaults = config.load(environ={})
    for row, setting in zip(rows, settings, strict=True):
        flag = "--" + setting.name.replace("_", "-")
        assert code(row[0]) == ([] if setting.metadata.get("secret") else [flag])
        default = (code(row[2]) or [""])[0].replace("UID", str(os.getuid()))
        if setting.name == "cache_dir" and "XDG_CACHE_HOME" in os.environ:
            continue
        told = config.load({setting.name: default}, {})
        assert getattr(told, setting.name) == getattr(defaults, setting.name), setting.name


def test_settings_that_the_prose_shows_for_a_file_are_read(tmp_path: Path) -> None:
    lines = [text for text in code(PROSE) if re.fullmatch(r"\w+ = \w+", text)]
    assert lines
    file = tmp_path / "prims.toml"
    file.write_text("\n".join(lines))
    assert config.load(environ={}, file=str(file)).run_seconds == 60


@pytest.mark.parametrize("text", blocks("toml"))
def test_each_settings_file_shown_is_one_that_is_read(text: str, tmp_path: Path) -> None:
    file = tmp_path / "prims.toml"
    file.write_text(text)
    assert config.load(environ={}, file=str(file)) != config.load(environ={})


def test_the_table_of_examples_has_each_of_them() -> None:
    scripts = {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    assert {name for row in table("script") for name in code(row[0])} == scripts - {
        "examples/_server.py", "examples/sales_report.py"
    }  # fmt: skip


def test_the_table_of_arguments_is_the_input_schema() -> None:
    parameters = _run_parameters(config.load(environ={}))
    assert [code(row[0]) for row in table("argument")] == [[parameter.name] for parameter in parameters]


def test_the_table_of_tools_is_what_the_server_offers() -> None:
    assert [code(row[0]) for row in table("tool")] == [[tool.name] for tool in TOOLS]


def test_the_table_of_fields_is_the_output_schema() -> None:
    rows = table("field")
    properties = OUTPUT_SCHEMA["properties"]
    assert [name for row in rows for name in code(row[0])] == list(properties)
    inner = {name: code(row[1]) for row in rows for name in code(row[0])}
    assert set(inner["error"]) == set(properties["error"]["properties"])
    for name in ("displays", "artifacts"):
        told = [word for word in inner[name] if not word.endswith("/")]
        assert set(told) == set(properties[name]["items"]["properties"])
    assert set(inner["seconds"]) == set(properties["seconds"]["properties"])


def test_the_table_of_statuses_is_the_output_schema() -> None:
    assert [code(row[0]) for row in table("status")] == [[s] for s in OUTPUT_SCHEMA["properties"]["status"]["enum"]]


def test_the_table_of_exit_statuses_has_what_a_run_can_give() -> None:
    assert {int(row[0]) for row in table("exit status")} == {*_EXIT.values(), 2, 3, 70}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_no_line_of_prose_is_too_long_to_read(path: Path) -> None:
    prose = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 120


@pytest.mark.slow
def test_the_demo_script_of_the_repository_gives_table_figure_and_files(state: Path) -> None:
    example = ROOT / "examples" / "sales_report.py"
    done = subprocess.run(
        [sys.executable, "-m", "prims", "run", example, "--mount", ROOT / "examples" / "sales.csv"],
        cwd=state, env=child_environment(state), capture_output=True, text=True, timeout=kit.SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "629 sales, 2798 units, revenue 433,768.95" in done.stdout
    assert re.search(r"^North +29162 +44595 +73333 +147090$", done.stdout, re.M)
    [picture] = re.findall(r"^picture: (\S+)", done.stderr, re.M)
    assert Path(picture).read_bytes().startswith(b"\x89PNG")
    assert (state / "output" / "by_region.csv").read_text().startswith("region,Audio,Home,Kitchen,all\n")
    assert (state / "output" / "sales_report.xlsx").read_bytes().startswith(b"PK")
