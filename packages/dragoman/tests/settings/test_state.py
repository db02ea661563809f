"""The secret key is created once, readable only by its owner, and the same for
concurrent starts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dragoman.launch.secret_key import load_or_create_key
from dragoman.settings import state_directory


def test_secret_key_created_once_with_owner_only_mode(tmp_path: Path):
    file = tmp_path / "new" / "secret.key"
    key = load_or_create_key(file)
    assert len(key) == 32
    assert load_or_create_key(file) == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["secret.key"]


def test_secret_key_concurrent_starts_get_same_key(tmp_path: Path):
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(load_or_create_key, [tmp_path / "secret.key"] * 64))) == 1


@pytest.mark.parametrize("text", ["", "abc", "z" * 64])
def test_secret_key_invalid_file_rejected_unchanged(tmp_path: Path, text: str):
    file = tmp_path / "secret.key"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"key|hex"):
        load_or_create_key(file)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("platform", "environment", "directory"),
    [
        ("linux", {"XDG_STATE_HOME": "/x"}, Path("/x/dragoman")),
        ("linux", {}, Path.home() / ".local/state/dragoman"),
        ("darwin", {"XDG_STATE_HOME": "/x"}, Path.home() / "Library/Application Support/dragoman"),
        ("win32", {"LOCALAPPDATA": "/l"}, Path("/l/dragoman")),
    ],
)
def test_state_directory_per_platform(platform: str, environment: dict[str, str], directory: Path):
    assert state_directory(environment, platform) == directory
