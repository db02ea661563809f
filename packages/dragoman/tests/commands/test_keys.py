"""`dragoman keys`: its output and its file; neither the file nor the arguments contain
a key.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from tests.cli_core import cli_runner

from dragoman.tenants import edit_key_file, hash_key, load_key_file


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_KEYS_FILE", str(tmp_path / "keys.yaml"))
    return tmp_path / "keys.yaml"


def call(*arguments: str, stdin: str | None = None) -> Result:
    return cli_runner.call("keys", *arguments, stdin=stdin)


def test_keys_add_prints_key_once_and_stores_hash(path: Path) -> None:
    result = call(
        "add", "team-a", "--model", "tiny", "--requests-per-minute", "60", "--weight", "2"
    )
    assert result.exit_code == 0
    key = result.stdout.strip()
    assert key.startswith("sk-dragoman-")
    tenant = load_key_file(path)["team-a"]
    assert [each.sha256 for each in tenant.secrets] == [hash_key(key)]
    assert (tenant.models, tenant.requests_per_minute, tenant.weight) == (("tiny",), 60, 2.0)
    assert key not in path.read_text()
    assert key not in call("list").stdout


def test_keys_rotate_keeps_owner_and_former_key_for_grace(path: Path) -> None:
    first = call("add", "a", "--tokens-per-day", "5").stdout.strip()
    before = load_key_file(path)["a"]
    second = call("rotate", "a", "--grace", "1").stdout.strip()
    after = load_key_file(path)["a"]
    assert (after.id, after.tokens_per_day) == (before.id, 5)
    assert [each.sha256 for each in after.secrets] == [hash_key(first), hash_key(second)]
    assert after.secrets[0].expires is not None
    assert after.secrets[1].expires is None
    assert "rotating" in call("list").stdout


def test_keys_rotate_without_grace_expires_former_key(path: Path) -> None:
    call("add", "a")
    second = call("rotate", "a", "--grace", "0").stdout.strip()
    assert [each.sha256 for each in load_key_file(path)["a"].secrets] == [hash_key(second)]


def test_keys_rotate_after_disable_drops_former_key(path: Path) -> None:
    call("add", "a")
    edit_key_file(
        path, lambda tenants: tenants.update(a=msgspec.structs.replace(tenants["a"], disabled=True))
    )
    second = call("rotate", "a").stdout.strip()
    tenant = load_key_file(path)["a"]
    assert ([each.sha256 for each in tenant.secrets], tenant.disabled) == (
        [hash_key(second)],
        False,
    )


@pytest.mark.parametrize("hours", ["-1", "nan", "inf", "1e8", "1e300"])
def test_keys_rotate_invalid_grace_is_rejected(path: Path, hours: str) -> None:
    call("add", "a")
    before = path.read_bytes()
    result = call("rotate", "a", "--grace", hours)
    assert (result.exit_code, "--grace" in result.stderr) == (2, True)
    assert path.read_bytes() == before


def test_keys_revoke_keeps_owner_until_deletion(path: Path) -> None:
    call("add", "a")
    id = load_key_file(path)["a"].id
    assert call("revoke", "a").exit_code == 0
    tenant = load_key_file(path)["a"]
    assert (tenant.id, tenant.secrets, tenant.disabled) == (id, (), True)
    assert "revoked" in call("list").stdout
    assert call("revoke", "a", "--delete").exit_code == 0
    assert load_key_file(path) == {}


def test_keys_add_from_stdin_stores_given_key(path: Path) -> None:
    key = "k" * 40
    result = call("add", "a", "--from-stdin", stdin=f"{key}\n")
    assert (result.exit_code, key in result.output) == (0, False)
    assert load_key_file(path)["a"].secrets[0].sha256 == hash_key(key)
    assert call("add", "b", "--from-stdin", stdin="short\n").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "a"], "a key a already exists"),
        (["rotate", "b"], "there is no key b; there are: a"),
        (["revoke", "b"], "there is no key b"),
        (["add", "b", "--role", "root"], "--role: must be user or admin"),
        (["add", "b", "--requests-per-minute", "0"], "requests_per_minute must be at least 1"),
        (["add", "b c"], "a name is 1 to 64 letters"),
    ],
)
def test_keys_invalid_arguments_print_error_and_keep_file(
    path: Path, arguments: list[str], message: str
) -> None:
    call("add", "a")
    before = path.read_bytes()
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert path.read_bytes() == before


def test_keys_without_key_file_prints_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_KEYS_FILE", raising=False)
    assert "--keys-file FILE or DRAGOMAN_KEYS_FILE" in call("list").stderr
