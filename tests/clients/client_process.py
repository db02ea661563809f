"""Run clients as their users do: in a separate process, with an empty home directory,
against a real server.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ..docs.harness import Server

PATIENCE = 240.0
"""Timeout in seconds: the imports of some clients take half a minute on a small
machine.
"""


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skip with a reason if a client is not installed."""
    missing = [module for module in modules if _is_missing(module)]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def _is_missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:
        # The package around it is not installed.
        return True


@contextmanager
def serving(arguments: str, folder: Path) -> Generator[str]:
    """Run `dragoman serve ARGUMENTS`, and yield its address."""
    server = Server(arguments, folder)
    try:
        yield server.address
    finally:
        server.close()


Results = dict[str, dict[str, Any]]
"""A client's results by the name of the trial."""

MODELS = """models:
  scripted: {model: scripted, pinned: true}
  tiny: {model: tiny, pinned: true, override_generation_config: {temperature: 0}}
"""
"""If a client sets no temperature, `tiny` gives the same answer each time."""


def run_trials(folder: Path, *command: str, options: str = "") -> Results:
    """Return a client program's results, one JSON line per trial, against a server of
    `scripted` and `tiny`.

    options: further options of the server.
    """
    with serving_both(folder, options) as address:
        return run_at(address, folder, *command)


@contextmanager
def serving_both(folder: Path, options: str = "") -> Generator[str]:
    """Serve `scripted` and `tiny`, and yield the address."""
    (folder / "models.yaml").write_text(MODELS)
    with serving(f"--config models.yaml --store memory {options}", folder) as address:
        yield address


def run_at(address: str, folder: Path, *command: str) -> Results:
    """Return a client program's results against the server at an address."""
    output = run(folder, *command, address)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line.pop("name"): line for line in lines}


def run(folder: Path, *command: str) -> str:
    """Return the output of the command. Hubs are offline."""
    home = {
        "HOME": str(folder),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout
