"""Settings: what they are, how they are read, and what is told when they are wrong."""

from __future__ import annotations

import tomllib
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from prims import config
from prims.config import Settings
from prims.errors import ConfigError


def load(**environ: str) -> Settings:
    return config.load(environ=environ)


def test_defaults_hold_when_nothing_is_said() -> None:
    settings = load()
    assert (settings.isolation, settings.run_seconds, settings.max_run_seconds) == ("auto", 100.0, 600.0)
    assert (settings.memory_bytes, settings.concurrent_runs) == (2 << 30, 8)
    assert "pandas" in settings.default_packages


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_default() -> None:
    environ = {"PRIMS_RUN_SECONDS": "20", "PRIMS_OPEN_FILES": "200"}
    settings = config.load({"run_seconds": "30", "open_files": None}, environ)
    assert (settings.run_seconds, settings.open_files, settings.processes) == (30.0, 200, 256)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("memory_bytes", "3G", 3 << 30),
        ("memory_bytes", "1.5g", 3 << 29),
        ("memory_bytes", " 512 MiB ", 512 << 20),
        ("memory_bytes", "none", None),
        ("output_bytes", "64K", 64 << 10),
        ("output_bytes", "2kb", 2048),
        ("file_bytes", "1T", 1 << 40),
        ("processes", "None", None),
        ("run_seconds", "0.5", 0.5),
        ("max_run_seconds", "NONE", None),
        ("queued_runs", "0", 0),
        ("isolation", " none ", "none"),
        ("default_packages", "six, attrs>=23 ,", ("six", "attrs>=23")),
        ("default_packages", "", ()),
        ("cache_dir", "/somewhere/cache", Path("/somewhere/cache")),
        ("state_dir", "~/state", Path("~/state").expanduser()),
        ("state_dir", "state", Path.cwd() / "state"),
        ("insecure_no_auth", "true", True),
        ("insecure_no_auth", "No", False),
        ("allow_host", "10.0.0.1:80,nas", ("10.0.0.1:80", "nas")),
    ],
)
def test_a_value_is_read_by_its_kind(name: str, text: str, value: Any) -> None:
    assert getattr(load(**{f"PRIMS_{name.upper()}": text}), name) == value
    assert getattr(config.load({name: text}, {}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("memory_bytes", "much", "a number or none"),
        ("memory_bytes", "-1", "a number or none"),
        ("memory_bytes", "1X", "a number or none"),
        ("memory_bytes", "", "a number or none"),
        ("memory_bytes", "1M", "at least"),
        ("run_seconds", "nan", "a number"),
        ("run_seconds", "inf", "a number"),
        ("run_seconds", "none", "a number"),
        ("run_seconds", "0", "at least 0.1"),
        ("code_bytes", "none", "a number"),
        ("concurrent_runs", "0", "at least 1"),
        ("processes", "3", "at least 32"),
        ("isolation", "docker", "auto, bubblewrap, landlock, none"),
        ("transport", "carrier pigeon", "stdio, http"),
        ("insecure_no_auth", "maybe", "true or false"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_setting_and_what_it_takes(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        load(**{f"PRIMS_{name.upper()}": text})
    assert words in str(told.value)
    assert name in str(told.value).lower()
    with pytest.raises(ConfigError) as told:
        config.load({name: text}, {})
    assert name.replace("_", "-") in str(told.value)


def test_an_unknown_variable_is_an_error_that_names_it_and_the_known_ones() -> None:
    with pytest.raises(ConfigError) as told:
        load(PRIMS_RUN_SECOND="5")
    assert "PRIMS_RUN_SECOND is not" in str(told.value)
    assert "PRIMS_RUN_SECONDS" in str(told.value)


def test_an_unknown_flag_is_an_error_even_when_it_is_not_given() -> None:
    with pytest.raises(ConfigError, match="speed"):
        config.load({"speed": None}, {})


def test_other_variables_are_nobodys_business() -> None:
    assert load(HOME="/x", PRIMSX="1", XPRIMS_RUN_SECONDS="1") == load()


def test_a_default_above_the_maximum_is_an_error_that_says_which_to_change() -> None:
    with pytest.raises(ConfigError, match="max_run_seconds"):
        load(PRIMS_RUN_SECONDS="700")
    assert load(PRIMS_RUN_SECONDS="700", PRIMS_MAX_RUN_SECONDS="none").run_seconds == 700


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        load().run_seconds = 1  # type: ignore[misc]


def test_every_setting_says_what_it_is() -> None:
    assert all(len(setting.metadata["help"]) > 10 for setting in fields(Settings))


def test_the_limits_of_a_run_are_the_settings_unless_the_call_names_its_time() -> None:
    settings = load(PRIMS_MEMORY_BYTES="1G", PRIMS_PROCESSES="none", PRIMS_TMP_BYTES="8M", PRIMS_OUTPUT_BYTES="1M")
    limits = settings.limits()
    for name in ("run_seconds", "memory_bytes", "processes", "open_files", "file_bytes", "output_bytes", "tmp_bytes"):
        assert getattr(limits, name) == getattr(settings, name)
    assert settings.limits(7.0).run_seconds == 7.0


def test_tools_of_the_server_get_its_environment_without_what_redirects_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PRIMS_ISOLATION"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("UV_INDEX_URL", "https://index.invalid/simple")
    environment = config.tool_environment()
    assert environment["UV_INDEX_URL"] == "https://index.invalid/simple"
    assert not [name for name in environment if name.startswith(("PYTHON", "VIRTUAL_ENV", "PRIMS_"))]


def test_a_file_holds_settings_and_the_environment_goes_before_it(tmp_path: Path) -> None:
    file = tmp_path / "prims.toml"
    file.write_text('run_seconds = 5\nmemory_bytes = "1G"\nprocesses = "none"\nallow_dir = ["/a", "/b"]\n')
    settings = load(PRIMS_CONFIG=str(file), PRIMS_RUN_SECONDS="7")
    assert (settings.run_seconds, settings.memory_bytes, settings.processes) == (7.0, 1 << 30, None)
    assert settings.allow_dir == ("/a", "/b")
    assert config.load({"run_seconds": "9"}, {}, file=str(file)).run_seconds == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [("run_second = 5", "run_second in"), ("run_seconds = 'x'", "run_seconds in"), ("run_seconds =", "cannot be read")],
)
def test_a_wrong_file_is_an_error_that_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "prims.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as told:
        config.load(environ={}, file=str(file))
    assert words in str(told.value)
    assert str(file) in str(told.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load(PRIMS_CONFIG=str(tmp_path / "absent.toml"))


def test_the_settings_in_force_are_shown_as_a_file_that_gives_the_same_without_secrets(tmp_path: Path) -> None:
    settings = load(PRIMS_RUN_SECONDS="7", PRIMS_PROCESSES="none", PRIMS_ALLOW_DIR="/a,/b", PRIMS_TOKEN="very-secret")
    text = config.shown(settings)
    assert "very-secret" not in text
    file = tmp_path / "prims.toml"
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("token =")))
    assert config.load({"token": "very-secret"}, {}, file=str(file)) == settings


def test_the_default_settings_are_shown_as_a_file_with_each_setting_once(tmp_path: Path) -> None:
    text = config.shown(load())
    told = tomllib.loads(text)
    assert list(told) == [setting.name for setting in fields(Settings)]
    file = tmp_path / "prims.toml"
    file.write_text(text, "utf-8")
    assert config.load(environ={}, file=str(file)) == load()


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("run_seconds = 2.5", "run_seconds", 2.5),
        ("processes = 64", "processes", 64),
        ('workspace_bytes = "2G"', "workspace_bytes", 2 << 30),
        ('max_run_seconds = "none"', "max_run_seconds", None),
        ("insecure_no_auth = true", "insecure_no_auth", True),
        ("insecure_no_auth = false", "insecure_no_auth", False),
        ('default_packages = ["six", "attrs>=23"]', "default_packages", ("six", "attrs>=23")),
        ('default_packages = "six, attrs"', "default_packages", ("six", "attrs")),
        ("default_packages = []", "default_packages", ()),
        ('cors_origins = ["https://a.example", "https://b.example:8443"]', "cors_origins",
         ("https://a.example", "https://b.example:8443")),
        ('http_hosts = ["prims.example"]', "http_hosts", ("prims.example",)),
        ('cache_dir = "~/cache"', "cache_dir", Path("~/cache").expanduser()),
    ],
)  # fmt: skip
def test_a_file_holds_values_of_each_kind(tmp_path: Path, line: str, name: str, value: Any) -> None:
    file = tmp_path / "prims.toml"
    file.write_text(f"# for this machine\n{line}\n")
    assert getattr(config.load(environ={}, file=str(file)), name) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[http]\nport = 1", "http in"),
        ("run_seconds = true", "run_seconds in"),
        ("processes = -5", "processes in"),
        ("code_bytes = 'none'", "code_bytes in"),
        ("run_seconds = 2024-01-01", "run_seconds in"),
        ("insecure_no_auth = 'maybe'", "insecure_no_auth in"),
        ("transport = 'smoke'", "stdio, http"),
        ("run_seconds = 5\nrun_seconds = 6", "cannot be read"),
    ],
)
def test_what_a_file_cannot_say_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "prims.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as told:
        config.load(environ={}, file=str(file))
    assert words in str(told.value)


def test_a_file_that_is_named_goes_before_the_one_of_the_environment(tmp_path: Path) -> None:
    named, other = tmp_path / "named.toml", tmp_path / "other.toml"
    named.write_text("run_seconds = 5")
    other.write_text("run_seconds = 6\nprocesses = 64")
    settings = config.load({}, {"PRIMS_CONFIG": str(other)}, file=str(named))
    assert (settings.run_seconds, settings.processes) == (5.0, 256)


def test_a_secret_is_shown_as_set_and_never_itself() -> None:
    assert tomllib.loads(config.shown(load(PRIMS_TOKEN="very-secret")))["token"] == "(set)"
    assert tomllib.loads(config.shown(load()))["token"] == ""
