"""If something is missing, make prints one sentence with the command to run. Python and
pip are fake scripts.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD_PIP = "pip 25.1 from /somewhere"


def make(target: str, venv: Path, python: str) -> tuple[int, str]:
    """Run a target with `venv`; return the exit status and the output."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")
    }
    command = [
        "make",
        "--no-print-directory",
        f"VENV={venv}",
        f"PYTHON={python}",
        f"{venv}/{target}",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def script(path: Path, cases: dict[str, str]) -> str:
    """Write a program that runs the shell line of the first pattern that matches its
    arguments, or just succeeds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"    {pattern}) {line} ;;\n" for pattern, line in cases.items())
    path.write_text(f'#!/bin/sh\ncase "$*" in\n{lines}esac\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("cases", "sentence"),
    [
        (
            {'*"version_info[:2]"*': "echo 3.10", "*version_info*": "exit 1"},
            "Python 3.10, and 3.11 or newer is needed",
        ),
        (
            {'*"version_info[:2]"*': "echo 3.13", "*ensurepip*": "exit 1"},
            "apt-get install python3.13-venv",
        ),
        ({'*"version_info[:2]"*': "exit 1"}, "does not run"),
    ],
)
def test_make_with_unsuitable_python_prints_one_line_error(
    tmp_path: Path, cases: dict[str, str], sentence: str
):
    status, printed = make(".made", tmp_path / "venv", script(tmp_path / "python", cases))
    assert status != 0
    assert sentence in printed.splitlines()[0]
    assert not (tmp_path / "venv/.made").exists()


def test_make_without_python_prints_one_line_error(tmp_path: Path):
    status, printed = make(".made", tmp_path / "venv", str(tmp_path / "none"))
    assert status != 0
    assert "is not installed: apt-get install python3 python3-venv" in printed.splitlines()[0]


def install(tmp_path: Path, pip: str, version: str = GOOD_PIP) -> tuple[int, str]:
    """Run `make` in an existing environment, whose pip runs the shell line `pip`."""
    venv = tmp_path / "venv"
    script(venv / "bin/python", {"*--version*": f"echo '{version}'", "*install*": pip})
    (venv / ".made").touch()
    return make(".serve", venv, "python3")


@pytest.mark.parametrize(
    ("pip", "sentence"),
    [
        (
            "echo \"error: command 'x86_64-linux-gnu-gcc' failed: No such file\"",
            "apt-get install build-essential",
        ),
        ("echo 'error: linker `cc` not found'", "apt-get install build-essential"),
        (
            "echo 'Retrying after NewConnectionError: Name resolution'; echo '(from versions: "
            "none)'",
            "PIP_INDEX_URL=",
        ),
        (
            "echo 'ERROR: Could not find a version that satisfies it (from versions: 1.0)'",
            "lacks a locked version",
        ),
        ("echo 'OSError: [Errno 28] No space left on device'", "make VENV="),
        ("echo 'something else'", "pip failed with the message above."),
    ],
)
def test_make_failed_installation_ends_with_one_line_error(tmp_path: Path, pip: str, sentence: str):
    status, printed = install(tmp_path, f"{pip}; exit 1")
    assert status != 0
    *_, last, errors_of_make = printed.strip().splitlines()
    assert sentence in last
    assert errors_of_make.startswith("make: ***")
    assert not (tmp_path / "venv/.serve").exists()


@pytest.mark.parametrize("version", ["9.0.1", "19.3", "20.3.4", "21.2.4"])
def test_make_with_old_pip_prints_one_line_error(tmp_path: Path, version: str):
    status, printed = install(tmp_path, "exit 1", f"pip {version} from /somewhere")
    assert status != 0
    assert f"pip {version} is too old" in printed
    assert "bin/python -m pip install --upgrade pip" in printed


def test_make_without_pip_prints_one_line_error(tmp_path: Path):
    status, printed = install(tmp_path, "exit 1", "")
    assert status != 0
    assert "bin/python -m ensurepip" in printed


def test_make_installation_prints_progress(tmp_path: Path):
    found = (
        "for n in $(seq 45); do echo Collecting $n; done; echo Installing collected packages: all"
    )
    status, printed = install(tmp_path, found)
    assert status == 0
    steps = [line.strip() for line in printed.splitlines()]
    assert steps[0].startswith("Installing the ")
    # Two pips, at once.
    assert sorted(steps[1:7]) == [
        *["20 more packages found ..."] * 4,
        *["Unpacking 45 packages ..."] * 2,
    ]
    assert (tmp_path / "venv/.serve").exists()


@pytest.mark.parametrize("part", ["1", "2"])
def test_make_failed_part_of_installation_fails(tmp_path: Path, part: str):
    pip = f'case "$*" in */{part}.txt) echo no space left; exit 1 ;; esac'
    status, printed = install(tmp_path, pip)
    assert status != 0
    assert "make VENV=" in printed


def test_make_parts_of_installation_are_whole_lock(tmp_path: Path):
    pip = f'case "$*" in *.txt) for file; do :; done; cp "$file" {tmp_path} ;; esac'
    assert install(tmp_path, pip)[0] == 0
    parts = [(tmp_path / f"{part}.txt").read_text().splitlines() for part in (1, 2)]
    lock = (ROOT / "requirements/serve.lock").read_text().splitlines()
    assert sorted(parts[0] + parts[1]) == sorted(lock)
    assert all("==" in part[0] for part in parts)
