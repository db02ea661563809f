"""The tables of the docs are what the code says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_are_fresh() -> None:
    told = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_no_architecture_is_served_wrongly() -> None:
    results = [tried["result"] for tried in json.loads((ROOT / "docs" / "architectures.json").read_text())["tried"]]
    assert "wrong" not in results
    assert results.count("right") >= 75
