"""The lock files: complete, exact, consistent, and without local paths."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = {
    name: ROOT / "requirements" / f"{name}.lock" for name in ("serve", "image", "test", "check")
}


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


PACKAGES = sorted(ROOT.glob("packages/*/pyproject.toml"))
SERVING = [file for file in PACKAGES if file.parent.name != "pytest-dragoman"]
"""The packages of a server; the others need pytest."""
TESTED = ("postgres", "redis", "otel", "kv-events", "plots")
"""The extras that the tests use, as in the Makefile."""
LARGE = ("llamacpp", "mlx", "ray", "transformers", "vllm")
"""Extras with large libraries, which are tested in environments of their own."""
SDKS = "sdk"
"""The extra with the vendors' SDKs, which the tests need in any case."""


def read_projects(files: Iterable[Path] = PACKAGES) -> list[dict[str, Any]]:
    return [tomllib.loads(file.read_text())["project"] for file in files]


def read_requirements(
    extras: Iterable[str] = (), groups: Iterable[str] = (), files: Iterable[Path] = PACKAGES
) -> list[Requirement]:
    """Return what packages need of others, with the groups of the repository."""
    projects = read_projects(files)
    names = {project["name"] for project in read_projects()}
    listed = [each for project in projects for each in project["dependencies"]]
    for project in projects:
        optional = project.get("optional-dependencies", {})
        listed += [each for extra in extras for each in optional.get(extra, ())]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    listed += [each for group in groups for each in declared[group]]
    found = [Requirement(each) for each in listed]
    return [requirement for requirement in found if requirement.name not in names]


def test_extras_match_tested_and_large_groups():
    projects = read_projects()
    extras = {extra for project in projects for extra in project.get("optional-dependencies", {})}
    others = {project["name"].removeprefix("dragoman-") for project in projects}
    assert extras - others == {*TESTED, *LARGE, SDKS}
    makefile = (ROOT / "Makefile").read_text()
    assert f"TESTED := {' '.join(f'--extra {extra}' for extra in TESTED)}\n" in makefile


def test_packages_pin_each_other_to_their_common_version():
    projects = read_projects()
    versions = {
        re.findall(r'^VERSION = "(.+)"$', file.read_text(), re.MULTILINE)[0]
        for file in ROOT.glob("packages/*/src/*/_version.py")
    }
    assert len(versions) == 1
    names = {project["name"] for project in projects}
    for project in projects:
        extras = project.get("optional-dependencies", {}).values()
        for each in (*project["dependencies"], *(each for extra in extras for each in extra)):
            requirement = Requirement(each)
            if requirement.name in names:
                assert str(requirement.specifier) == f"=={next(iter(versions))}", each


@pytest.mark.parametrize(
    ("name", "extras", "groups"),
    [
        ("serve", (), ()),
        ("image", ("postgres", "redis", "otel", "kv-events"), ()),
        ("test", (*TESTED, SDKS), ("test",)),
        ("check", (*TESTED, SDKS), ("test", "check")),
    ],
    ids=list(LOCKS),
)
def test_lock_satisfies_requirements_of_packages(
    name: str, extras: tuple[str, ...], groups: tuple[str, ...]
):
    pinned = pins(LOCKS[name])
    files = PACKAGES if groups else SERVING
    for requirement in read_requirements(extras, groups, files):
        versions = pinned[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(Version(version)) for version in versions), (
            requirement
        )


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_lock_omits_own_packages(lock: Path):
    assert not {project["name"] for project in read_projects()} & pins(lock).keys()


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_lock_has_exact_versions_and_no_locations(lock: Path):
    text = lock.read_text()
    assert not re.search(r"://|--index|--find|@ |(^|\s)/\w", text)
    for entry in entries(lock):
        assert re.match(r"[A-Za-z0-9._-]+(\[.*\])?==\S+ ", entry), entry
        assert "--hash=sha256:" in entry


def test_locks_pin_same_versions():
    everything = pins(LOCKS["check"])
    for name in ("serve", "image", "test"):
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
