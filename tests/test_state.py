"""The folder that servers keep their sessions in."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from prims.errors import ConfigError
from prims.state import state_folder, sweep


def test_a_folder_is_removed_at_the_end_with_all_that_is_in_it(tmp_path: Path) -> None:
    base = tmp_path / "state"
    with state_folder(base) as folder:
        (folder / "w1" / "files").mkdir(parents=True)
        assert folder.stat().st_mode & 0o066 == 0  # others may pass at most
    assert list(base.iterdir()) == []


def test_a_sweep_removes_what_a_dead_server_left_and_nothing_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    dead = tmp_path / "0123abcd"
    (dead / "w1").mkdir(parents=True)
    (dead / "lock").touch()
    others = [tmp_path / "documents", tmp_path / "deadbeef", tmp_path / "0123abce.bak"]
    for folder in others:
        (folder / "precious").mkdir(parents=True)
    (others[0] / "lock").touch()
    with state_folder(tmp_path) as alive:
        sweep(tmp_path)
        assert not dead.exists()
        assert alive.is_dir()
        assert all((folder / "precious").is_dir() for folder in others)


def test_a_folder_whose_lock_is_held_is_alive(tmp_path: Path) -> None:
    folder = tmp_path / "0123abcd"
    folder.mkdir()
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        sweep(tmp_path)
        assert folder.exists()
    finally:
        os.close(lock)
    sweep(tmp_path)
    assert not folder.exists()


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    base = tmp_path / "state"
    base.mkdir()
    base.chmod(mode)
    with pytest.raises(ConfigError, match="PRIMS_STATE_DIR"), state_folder(base):
        pass


def test_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(ConfigError), state_folder(tmp_path / "link"):
        pass
