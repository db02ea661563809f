"""The program of docs/client-tests.md for Vitest, with OpenAI's SDK for Node."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from ..docs.blocks import blocks
from .client_process import run

ROOT = Path(__file__).parents[2]
MODULES = Path(__file__).parent / "node" / "node_modules"
PATH = f"{MODULES / '.bin'}{os.pathsep}{os.environ['PATH']}"

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        any(shutil.which(program, path=PATH) is None for program in ("node", "vitest")),
        reason="needs node, and `npm install --prefix tests/clients/node`",
    ),
]


def test_vitest_program_of_docs_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/client-tests.md").read_text(encoding="utf-8")
    for block in blocks(page):
        if block.kind == "file" and block.language == "js":
            (tmp_path / block.argument).write_text(block.text)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(MODULES)
    programs = tmp_path / "bin"
    programs.mkdir()
    dragoman = programs / "dragoman"
    dragoman.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dragoman "$@"\n')
    dragoman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{PATH}")
    run(tmp_path, "vitest", "run", "--reporter=json", "--outputFile=report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["numPassedTests"], report["numTotalTests"]) == (7, 7)
