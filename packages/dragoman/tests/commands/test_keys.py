"""`dragoman keys`: its output and its file; neither the file nor the arguments contain
a key.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from tests.cli_core import cli_runner

from dragoman.commands.keys import parse_expiry
from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key, load_key_file


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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "tiny,qwen*"],
        ["--model", "tiny", "--model", "qwen*"],
        ["--model", " tiny , qwen* "],
    ],
)
def test_keys_add_comma_separated_models_are_patterns(path: Path, arguments: list[str]) -> None:
    assert call("add", "a", *arguments).exit_code == 0
    assert load_key_file(path)["a"].models == ("tiny", "qwen*")


NOW = datetime(2026, 11, 28, 12, 0, 0, 500, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90d", "2027-02-26T12:00:01+00:00"),
        ("12h", "2026-11-29T00:00:01+00:00"),
        ("2w", "2026-12-12T12:00:01+00:00"),
        ("30m", "2026-11-28T12:30:01+00:00"),
        ("45s", "2026-11-28T12:00:46+00:00"),
        ("2026-11-28", "2026-11-29T00:00:00+00:00"),
        ("2027-01-31T18:00:00Z", "2027-01-31T18:00:00+00:00"),
        ("2027-01-31T18:00:00+02:00", "2027-01-31T16:00:00+00:00"),
    ],
)
def test_parse_expiry_durations_dates_and_times(text: str, expected: str) -> None:
    assert parse_expiry(text, NOW) == datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    "text",
    ["", "0d", "-1d", "1.5d", "90", "9y", "999999999w", "2026-11-27", "2027-01-31T18:00", "soon"],
)
def test_keys_add_invalid_expiry_is_rejected(path: Path, text: str) -> None:
    result = call("add", "a", f"--expires={text}")
    assert (result.exit_code, "--expires" in result.stderr) == (2, True)
    assert not path.exists()


def test_keys_list_shows_expiry_and_expired_keys(path: Path) -> None:
    result = call("add", "a", "--expires", "2999-12-31")
    assert "expires at 3000-01-01T00:00:00Z" in result.stderr
    call("add", "b")

    def expire(tenants: dict[str, Tenant]) -> None:
        past = datetime(2020, 1, 1, tzinfo=UTC)
        tenants["c"] = Tenant(secrets=(KeyHash(hash_key("c"), past),))

    edit_key_file(path, expire)
    rows = {row.split()[0]: row for row in call("list").stdout.splitlines()}
    assert "EXPIRES" in rows["NAME"]
    assert "active" in rows["a"]
    assert "3000-01-01T00:00:00Z" in rows["a"]
    assert "active   -" in rows["b"]
    assert "expired  2020-01-01T00:00:00Z" in rows["c"]


def test_keys_rotate_with_expiry_limits_new_key(path: Path) -> None:
    call("add", "a", "--expires", "90d")
    result = call("rotate", "a", "--grace", "0", "--expires", "2999-12-31")
    (secret,) = load_key_file(path)["a"].secrets
    assert secret.expires == datetime(3000, 1, 1, tzinfo=UTC)
    assert "expires at 3000-01-01" in result.stderr


def test_keys_edits_say_when_servers_apply_them(path: Path) -> None:
    messages = [call("add", "a"), call("rotate", "a"), call("revoke", "a")]
    for result in messages:
        assert "apply the change within 2 seconds" in result.stderr
    assert "SIGHUP" not in path.read_text()


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
        (["add", "b", "--role", "root"], "--role: must be one of user, admin, metrics"),
        (["add", "b", "--requests-per-minute", "0"], "requests_per_minute must be at least 1"),
        (["add", "b", "--model", "tiny,,qwen*"], "--model: a name or a pattern is empty"),
        (["add", "b", "--model", ""], "--model: a name or a pattern is empty"),
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
