"""Every benchmark can be imported. None is run here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"


def test_benchmarks_can_all_be_imported() -> None:
    names = sorted(file.stem for file in FOLDER.glob("*.py"))
    assert "simulator_server" in names
    script = f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)"
    # The package `tests` lies in the repository and in each package.
    folders = [ROOT, *ROOT.glob("packages/*"), FOLDER]
    found = os.pathsep.join(str(folder) for folder in folders)
    environment = {**os.environ, "PYTHONPATH": found}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
