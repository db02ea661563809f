"""The lock files: complete, exact, consistent, and without local paths."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = {name: ROOT / "requirements" / f"{name}.lock" for name in ("serve", "test", "check")}


def entries(lock: Path) -> list[str]:
    """Return one text per package, with its hashes."""
    return re.split(r"\n(?=\S)", lock.read_text().strip())


def pins(lock: Path) -> dict[str, set[str]]:
    """Return versions by name; there may be one per platform."""
    found: dict[str, set[str]] = {}
    for entry in entries(lock):
        requirement = Requirement(entry.partition(" \\")[0])
        found.setdefault(canonicalize_name(requirement.name), set()).update(
            specifier.version for specifier in requirement.specifier
        )
    return found


TESTED = ("postgres", "redis", "kv-events", "plots")
"""The extras that the tests use, as in the Makefile."""


def read_requirements(*groups: str) -> list[Requirement]:
    text = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = text["project"]
    found = [Requirement(each) for each in project["dependencies"]]
    found += [Requirement(each) for group in groups for each in text["dependency-groups"][group]]
    if groups:
        found += [
            Requirement(each)
            for extra in TESTED
            for each in project["optional-dependencies"][extra]
        ]
    return found


def test_extras_match_tested_and_large_groups():
    text = tomllib.loads((ROOT / "pyproject.toml").read_text())
    large = {"llamacpp", "mlx", "ray", "transformers", "vllm"}
    assert set(text["project"]["optional-dependencies"]) == {*TESTED, *large}


@pytest.mark.parametrize(
    ("name", "groups"),
    [("serve", ()), ("test", ("test",)), ("check", ("test", "check"))],
    ids=list(LOCKS),
)
def test_lock_satisfies_project_requirements(name: str, groups: tuple[str, ...]):
    pinned = pins(LOCKS[name])
    for requirement in read_requirements(*groups):
        versions = pinned[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(Version(version)) for version in versions), (
            requirement
        )


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_lock_has_exact_versions_and_no_locations(lock: Path):
    text = lock.read_text()
    assert not re.search(r"://|--index|--find|@ |(^|\s)/\w", text)
    for entry in entries(lock):
        assert re.match(r"[A-Za-z0-9._-]+(\[.*\])?==\S+ ", entry), entry
        assert "--hash=sha256:" in entry


def test_locks_pin_same_versions():
    everything = pins(LOCKS["check"])
    for name in ("serve", "test"):
        assert pins(LOCKS[name]).items() <= everything.items()


def test_docs_lock_is_exact_and_agrees_with_other_locks():
    lock = ROOT / "requirements/docs.lock"
    text = lock.read_text()
    assert not re.search(r"://|--index|--find|@ |(^|\s)/\w", text)
    assert all("--hash=sha256:" in entry for entry in entries(lock))
    pinned = pins(lock)
    everything = pins(LOCKS["check"])
    for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["docs"]:
        requirement = Requirement(each)
        assert all(
            requirement.specifier.contains(version)
            for version in pinned[canonicalize_name(requirement.name)]
        )
    shared = pinned.keys() & everything.keys()
    assert "jinja2" in shared
    assert all(pinned[name] <= everything[name] for name in shared)


def test_lock_supports_every_platform():
    """numpy has a wheel for each platform, so its hashes show which platforms the lock
    supports.
    """
    hashes = [
        entry.count("--hash") for entry in entries(LOCKS["serve"]) if entry.startswith("numpy==")
    ]
    assert hashes
    assert min(hashes) > 20
