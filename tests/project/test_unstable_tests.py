"""Tests that are marked unstable: few, each with a reason and a date, and only they run
twice.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"^ *@pytest\.mark\.unstable\((.*?)\)$", re.MULTILINE | re.DOTALL)
MOST = 5
UNSTABLE = """
import pathlib
import pytest

pytestmark = pytest.mark.unstable("a race", since="2026-11-28")

def test_flaky(request):
    tries = pathlib.Path(__file__).with_suffix(".tries")
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    assert tries.read_text() == "xx"

def test_broken():
    assert False
"""
STABLE = "def test_stable():\n    assert False\n"


def find_marks() -> list[tuple[Path, str]]:
    """The files and arguments of all marks in the repository."""
    files = [file for folder in ("packages", "tests") for file in (ROOT / folder).rglob("*.py")]
    return [(file, mark) for file in files for mark in MARK.findall(file.read_text())]


def test_unstable_tests_are_at_most_five_with_reason_and_date() -> None:
    marks = find_marks()
    assert len(marks) <= MOST
    for file, mark in marks:
        found = re.fullmatch(r'\s*"[^"]+",\s*since="(\d{4}-\d{2}-\d{2})",?\s*', mark)
        assert found is not None, f"{file}: unstable({mark})"
        date.fromisoformat(found[1])


def run_pytest(folder: Path, *arguments: str) -> str:
    """Run the tests in `folder` with the project's conftest.py; return the output."""
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = unstable(reason, since): as here\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
def test_failed_unstable_test_runs_again(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_it.py").write_text(UNSTABLE)
    printed = run_pytest(tmp_path, "-n", workers)
    assert "1 failed, 1 passed" in printed
    assert "2 tests marked unstable" in printed
    assert "failed at first: test_it.py::test_flaky" in printed
    assert "failed at first: test_it.py::test_broken" in printed


def test_failed_unmarked_test_runs_once(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(STABLE)
    printed = run_pytest(tmp_path)
    assert "1 failed in" in printed
    assert "unstable" not in printed


@pytest.mark.parametrize("arguments", ['since="2026-11-28"', '"a race"', '"a race", since="soon"'])
def test_unstable_mark_without_reason_or_date_is_rejected(tmp_path: Path, arguments: str) -> None:
    marked = f"import pytest\n\n@pytest.mark.unstable({arguments})\n{STABLE}"
    (tmp_path / "test_it.py").write_text(marked)
    printed = run_pytest(tmp_path)
    assert "test_it.py::test_stable: unstable() needs" in printed


def test_skipped_tests_are_written_to_file(tmp_path: Path) -> None:
    skipped = "import pytest\n\n@pytest.mark.skip(reason='no')\ndef test_it():\n    pass\n"
    (tmp_path / "test_it.py").write_text(skipped)
    (tmp_path / "test_other.py").write_text(STABLE)
    run_pytest(tmp_path, "--skipped-to", "skipped.txt")
    assert (tmp_path / "skipped.txt").read_text() == "test_it.py::test_it\n"
    assert "1 skipped in" in run_pytest(tmp_path, "@skipped.txt")
