"""The key file: accepted contents and error messages; it never contains a key."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dragoman.tenants import (
    KeyFileError,
    KeyHash,
    Tenant,
    edit_key_file,
    generate_key,
    hash_key,
    load_key_file,
)

NOW = datetime(2026, 11, 23, tzinfo=UTC)
SHA = "0" * 63 + "a"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def test_key_file_round_trips_tenant(path: Path) -> None:
    tenant = Tenant(
        id="key_1",
        secrets=(KeyHash(hash_key("one")), KeyHash(hash_key("two"), NOW + timedelta(hours=1))),
        role="admin",
        models=("tiny", "qwen*"),
        requests_per_minute=60,
        tokens_per_minute=1000,
        concurrent_requests=4,
        tokens_per_day=10**6,
        tokens_per_month=10**7,
        weight=2.5,
        created=NOW,
    )
    edit_key_file(path, lambda tenants: tenants.update({"team-a": tenant}), now=lambda: NOW)
    assert load_key_file(path) == {"team-a": tenant}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir() if file.suffix != ".lock"] == ["keys.yaml"]


def test_key_file_edit_removes_expired_hash(path: Path) -> None:
    old = Tenant(id="key_1", secrets=(KeyHash(SHA, NOW), KeyHash(hash_key("new"))))
    edit_key_file(path, lambda tenants: tenants.update(a=old), now=lambda: NOW - timedelta(days=1))
    assert len(load_key_file(path)["a"].secrets) == 2
    edit_key_file(path, lambda _: None, now=lambda: NOW)
    assert [each.sha256 for each in load_key_file(path)["a"].secrets] == [hash_key("new")]


def test_key_file_edit_through_symlink_keeps_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "etc" / "keys.yaml"
    link.parent.mkdir()
    link.symlink_to(path)
    edit_key_file(path, lambda tenants: tenants.update(a=Tenant()))
    edit_key_file(link, lambda tenants: tenants.update(b=Tenant()))
    assert (link.is_symlink(), list(load_key_file(path))) == (True, ["a", "b"])


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may give files away")
def test_key_file_edit_keeps_owner_and_mode(path: Path) -> None:
    edit_key_file(path, lambda tenants: tenants.update(a=Tenant()))
    os.chown(path, 10001, 10002)
    path.chmod(0o640)
    edit_key_file(path, lambda tenants: tenants.update(b=Tenant()))
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (10001, 10002, 0o640)


def test_key_file_invalid_edit_leaves_file_unchanged(path: Path) -> None:
    edit_key_file(path, lambda tenants: tenants.update(a=Tenant(secrets=(KeyHash(SHA),))))
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match="same key as a"):
        edit_key_file(path, lambda tenants: tenants.update(b=Tenant(secrets=(KeyHash(SHA),))))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys: [", "line 1: not valid YAML"),
        ("keys: {a: {request_per_minute: 3}}", "unknown field"),
        ("keys: {a: {requests_per_minute: 0}}", "requests_per_minute must be at least 1"),
        ("keys: {a: {requests_per_minute: 1.5}}", "Expected `int"),
        ("keys: {a: {tokens_per_day: -1}}", "tokens_per_day must not be negative"),
        ("keys: {a: {weight: 0}}", "weight must be"),
        ("keys: {a: {weight: .nan}}", "weight must be"),
        ("keys: {a: {role: root}}", "Invalid enum value 'root'"),
        ("keys: {'a b': {}}", "a name is"),
        (f"keys: {{a: {{secrets: [{{sha256: {SHA[1:]}}}]}}}}", "must be 64"),
        (
            f"keys: {{a: {{secrets: [{{sha256: {SHA}, expires: 2027-01-01T00:00:00}}]}}}}",
            "needs a time zone",
        ),
        (
            f"keys: {{a: {{secrets: [{{sha256: {SHA}}}]}}, b: {{secrets: [{{sha256: {SHA}}}]}}}}",
            "same key as a",
        ),
        ("keys: {a: {id: x}, b: {id: x}}", "same id as a"),
        ("keys: {a: {id: x}, a: {id: y}}", "line 1 has a name twice"),
        ("keys: {a: {created: 2027-13-01}}", "keys.yaml: not valid YAML"),
        ("[" * 20_000, "keys.yaml: not valid YAML"),
        ("[]", "Expected `object`, got `array`"),
        ("keys: {a: {id: dragoman/usage}}", "id: 1 to 64"),
        ("keys: {a: {models: ['tiny,qwen*']}}", "models: an item is one name or pattern"),
        ("keys: {a: {models: [tiny, '']}}", "models: an item is one name or pattern"),
    ],
)
def test_key_file_error_names_entry(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(KeyFileError, match=message):
        load_key_file(path)


def test_key_file_supports_yaml_merge(path: Path) -> None:
    path.write_text(
        "keys:\n  a: &a {requests_per_minute: 3, weight: 2}\n  b: {<<: *a, weight: 4}\n"
    )
    tenants = load_key_file(path)
    assert (tenants["b"].requests_per_minute, tenants["a"].weight, tenants["b"].weight) == (3, 2, 4)


@pytest.mark.parametrize(
    "text", ["sk-dragoman-secret: [", "keys: {a: {secrets: [sk-dragoman-secret]}}"]
)
def test_key_file_error_hides_misplaced_key(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(KeyFileError) as found:
        load_key_file(path)
    assert "secret" not in str(found.value).replace("secrets", "")


def test_key_file_missing_id_is_derived_deterministically(path: Path) -> None:
    path.write_text("keys: {a: {}, b: {}}")
    first = load_key_file(path)
    second = load_key_file(path)
    assert first == second
    assert first["a"].id != first["b"].id


def test_generate_key_is_unique_with_256_random_bits() -> None:
    keys = {generate_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == len("sk-dragoman-") + 43 for key in keys)
