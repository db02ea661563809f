"""Releases: changelog fragments that towncrier reads, and notes for each release."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
FRAGMENT = re.compile(r"(\d+|\+[a-z0-9-]+)\.(added|changed|fixed|removed)(\.\d+)?\.md")


def test_changelog_fragments_have_valid_names() -> None:
    names = {file.name for file in (ROOT / "changelog.d").iterdir()} - {"README.md"}
    assert [name for name in sorted(names) if not FRAGMENT.fullmatch(name)] == []
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    assert settings["start_string"] in (ROOT / "CHANGELOG.md").read_text()


def print_notes(version: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "requirements/release_notes.py"), version, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """Empty files in place of the packages of the first release."""
    for package in PACKAGES:
        stem = f"{package.name.replace('-', '_')}-0.1.0"
        (tmp_path / f"{stem}-py3-none-any.whl").touch()
        (tmp_path / f"{stem}.tar.gz").touch()
    return tmp_path


def test_release_notes_are_section_of_version(dist: Path) -> None:
    done = print_notes("0.1.0", dist)
    if list((ROOT / "changelog.d").glob("*.*.md")):
        assert "fragments of the next release" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert 20 < len(done.stdout.splitlines()) <= 150


def test_release_notes_with_missing_package_fail(dist: Path) -> None:
    (dist / "dragoman_check-0.1.0.tar.gz").unlink()
    done = print_notes("0.1.0", dist)
    assert done.returncode == 1
    assert "dragoman_check-0.1.0.tar.gz" in done.stderr


def test_release_notes_of_other_version_fail(dist: Path) -> None:
    assert print_notes("0.2.0", dist).returncode == 1
