"""The locked packages: hashes, no version that `requirements/advisories.toml` lists,
and an SBOM.

The list is small and maintained manually. The audit finds known problems offline, and
is not complete.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .test_locks import LARGE, LOCKS, ROOT, SDKS, TESTED, entries, pins, read_requirements

ADVISORIES: dict[str, dict[str, list[str]]] = tomllib.loads(
    (ROOT / "requirements/advisories.toml").read_text()
)


def affecting(name: str, version: str) -> list[str]:
    """Return the ids of the advisories of this version."""
    listed = ADVISORIES.get(name, {})
    return [
        id
        for id, ranges in listed.items()
        if any(Version(version) in SpecifierSet(each) for each in ranges)
    ]


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_locked_packages_have_hashes(lock: Path):
    for entry in entries(lock):
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_locked_versions_have_no_listed_advisory(lock: Path):
    found = {
        f"{name}=={version}": affecting(name, version)
        for name, all_ in pins(lock).items()
        for version in all_
    }
    assert {pin: ids for pin, ids in found.items() if ids} == {}


def test_advisory_list_covers_locked_packages():
    assert len(ADVISORIES.keys() & pins(LOCKS["check"]).keys()) >= 12
    assert affecting("h11", "0.14.0") == ["CVE-2025-43859"]
    assert affecting("starlette", "0.48.0") == ["CVE-2025-62727"]
    assert affecting("h11", "0.16.0") == []


def test_audit_asks_for_every_lock_and_fails_if_it_cannot() -> None:
    command = subprocess.run(
        ["make", "--dry-run", "audit"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"for lock in (.*); do", command)
    assert found is not None
    locks = {lock.stem for lock in (ROOT / "requirements").glob("*.lock")}
    # `check` has the packages of `test` in the same versions.
    assert {*found[1].split(), "test"} == locks
    assert pins(LOCKS["test"]).items() <= pins(LOCKS["check"]).items()
    # Without it, a package that PyPI does not find counts as one without advisories.
    assert "--strict" in command
    nightly = (ROOT / ".github/workflows/nightly.yml").read_text()
    assert "run: make audit" in nightly


def test_published_image_names_base_by_digest() -> None:
    text = (ROOT / ".github/workflows/image.yml").read_text()
    assert "build-args: BASE=${{ steps.base.outputs.image }}" in text
    assert 'echo "image=$BASE@$digest"' in text
    stages = re.findall(r"^FROM (\S+)", (ROOT / "deploy/docker/Dockerfile").read_text(), re.M)
    assert stages == ["${BASE}", "${BASE}"]


def write_sbom(lock: Path) -> bytes:
    command = [sys.executable, str(ROOT / "requirements/sbom.py"), str(lock)]
    return subprocess.run(command, check=True, capture_output=True).stdout


def test_sbom_contains_every_pinned_package_with_hashes():
    lock = LOCKS["serve"]
    bom = json.loads(write_sbom(lock))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert bom["metadata"]["component"]["name"] == "dragoman"
    pinned = {(name, version) for name, versions in pins(lock).items() for version in versions}
    assert {(one["name"], one["version"]) for one in bom["components"]} == pinned
    assert all(
        one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}" for one in bom["components"]
    )
    assert all(one["hashes"] for one in bom["components"])
    assert len({one["bom-ref"] for one in bom["components"]}) == len(bom["components"])
    assert sum(len(one["hashes"]) for one in bom["components"]) == lock.read_text().count(
        "--hash=sha256:"
    )


def test_sbom_output_is_deterministic():
    assert write_sbom(LOCKS["serve"]) == write_sbom(LOCKS["serve"])


def test_lowest_accepted_versions_have_no_listed_advisory():
    found: dict[str, list[str]] = {}
    for requirement in read_requirements((*TESTED, *LARGE, SDKS)):
        bounds = [each.version for each in requirement.specifier if each.operator == ">="]
        assert bounds, f"{requirement} has no lower bound"
        found |= {
            str(requirement): ids for bound in bounds if (ids := affecting(requirement.name, bound))
        }
    assert found == {}


def read_exact_requirements(name: str) -> list[Requirement]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name", ["clients.txt", "engines.txt", "ray.txt", "vllm.txt"])
def test_requirements_outside_locks_have_exact_versions(name: str):
    """Packages may run code when they are installed."""
    requirements = read_exact_requirements(name)
    assert requirements
    for requirement in requirements:
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement


def test_node_clients_have_exact_versions():
    node = json.loads((ROOT / "tests/clients/node/package.json").read_text())
    for package, version in {**node["dependencies"], **node["optionalDependencies"]}.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), package


def test_clients_match_their_dependency_group():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    clients = {requirement.name for requirement in read_exact_requirements("clients.txt")}
    assert clients == {Requirement(each).name for each in groups["clients"]}


def test_makefile_installs_exact_versions():
    for line in re.findall(r"install --constraint \S+ (.*)", (ROOT / "Makefile").read_text()):
        assert line.startswith("-r ") or all("==" in package for package in line.split()), line
