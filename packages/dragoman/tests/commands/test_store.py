"""`dragoman store`: the files of a backup, and errors that say what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import Result
from tests.cli_core import cli_runner

from dragoman.launch.secret_key import find_key_file, load_or_create_key
from dragoman.store import Key, Put, SqliteStore


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a server with one stored response."""
    for name in ("DRAGOMAN_STORE", "DRAGOMAN_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "dragoman"
    asyncio.run(store_response(folder / "store.db"))
    load_or_create_key(folder / "secret.key")
    return folder


async def store_response(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.commit(Put(Key("a", "response", "resp_1"), 1_790_000_000, b"x"))
    await store.close()


def call(*arguments: str) -> Result:
    return cli_runner.call("store", *arguments)


def test_store_backup_has_store_secret_and_keys(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: {}\n")
    monkeypatch.setenv("DRAGOMAN_KEYS_FILE", str(keys))
    backup = tmp_path / "backups/monday"
    result = call("backup", str(backup))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{backup}: store.db, store.db.key, keys.yaml (")
    assert {file.name: file.stat().st_mode & 0o777 for file in backup.iterdir()} == {
        "store.db": 0o600,
        "store.db.key": 0o600,
        "keys.yaml": 0o600,
    }
    assert backup.stat().st_mode & 0o777 == 0o700
    # Restored at a path, the server finds the key beside the store.
    assert (
        find_key_file(f"sqlite:{backup}/store.db", {}).read_bytes()
        == (state / "secret.key").read_bytes()
    )
    assert call("check", "--store", f"sqlite:{backup}/store.db").stdout.endswith("no problems\n")


def test_store_backup_without_secret_file_warns(state: Path, tmp_path: Path) -> None:
    (state / "secret.key").unlink()
    result = call("backup", str(tmp_path / "backup"))
    assert result.exit_code == 0
    assert "DRAGOMAN_SECRET_KEY" in result.stderr


def test_store_backup_refuses_existing_folder(state: Path, tmp_path: Path) -> None:
    assert call("backup", str(state)).exit_code == 2
    (tmp_path / "new.partial").mkdir()
    result = call("backup", str(tmp_path / "new"))
    assert (result.exit_code, "was interrupted; remove it" in result.stderr) == (2, True)


def test_store_backup_failure_leaves_no_folder(state: Path, tmp_path: Path) -> None:
    result = call("backup", str(tmp_path / "new"), "--keys-file", str(tmp_path / "absent.yaml"))
    assert (result.exit_code, "absent.yaml" in result.stderr) == (2, True)
    assert not list(tmp_path.glob("new*"))
    (state / "store.db").write_bytes(b"x" * 5000)
    assert call("backup", str(tmp_path / "new")).exit_code == 2
    assert not list(tmp_path.glob("new*"))


def test_store_check_damaged_store_exits_with_error(state: Path) -> None:
    path = state / "store.db"
    content = bytearray(path.read_bytes())
    # The root page of an index: its records are no longer listed.
    content[3 * 4096 : 4 * 4096] = b"\xaa" * 4096
    path.write_bytes(content)
    result = call("check")
    assert result.exit_code in (1, 2)
    assert str(path) in result.stderr


@pytest.mark.usefixtures("state")
def test_store_stats_lists_kinds() -> None:
    result = call("stats")
    assert result.exit_code == 0
    assert "schema 2" in result.stdout
    row = next(line for line in result.stdout.splitlines() if line.startswith("response"))
    assert row.split()[1] == "1"
    assert "2026-09-21" in row


@pytest.mark.parametrize("command", ["check", "stats", "backup"])
@pytest.mark.parametrize(
    ("store", "advice"),
    [
        ("postgresql://user:secret@host/db", "pg_dump"),
        ("memory", "keeps nothing"),
        ("none", "keeps nothing"),
        ("redis://cache", "must be `sqlite`"),
        ("sqlite:absent/store.db", "There is no store at absent/store.db"),
    ],
)
def test_store_commands_name_counterpart_of_store(command: str, store: str, advice: str) -> None:
    target = ["new"] if command == "backup" else []
    result = call(command, *target, "--store", store)
    assert (result.exit_code, advice in result.stderr) == (2, True)
    assert "secret" not in result.stderr
    assert not Path("absent").exists()
    assert not Path("new").exists()
