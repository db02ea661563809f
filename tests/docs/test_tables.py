"""The tables of the docs match the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_docs_tables_are_up_to_date() -> None:
    process = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_docs_reference_covers_every_command() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "dragoman", "--help"], capture_output=True, text=True, check=True
    )
    commands = set(re.findall(r"^  ([a-z]+)  +[A-Z]", process.stdout, re.MULTILINE))
    assert {"check", "keys"} <= commands
    described = set(
        re.findall(
            r"^## dragoman ([a-z]+)",
            (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8"),
            re.MULTILINE,
        )
    )
    assert commands - described == {"serve"}, "run: python docs/generate.py"


def test_docs_architectures_have_no_wrong_result() -> None:
    results = [
        tried["result"]
        for tried in json.loads((ROOT / "docs" / "architectures.json").read_text())["tried"]
    ]
    assert "wrong" not in results
    assert results.count("right") >= 75
