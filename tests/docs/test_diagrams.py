"""The diagrams in the docs are up to date with their generator and with the existing
packages.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import dragoman.core.events
import dragoman.core.request
import dragoman.core.token_engine

ROOT = Path(__file__).parents[2]
NAMES = ("request", "packages", "tour", "deployment")


@pytest.fixture(scope="module")
def diagrams() -> Any:
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "docs" / "diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_diagram_files_match_generator_output(diagrams: Any) -> None:
    drawn = dict(diagrams.draw_all())
    assert {path.stem for path in drawn} == set(NAMES)
    outdated = [
        path.name for path, text in drawn.items() if path.read_text(encoding="utf-8") != text
    ]
    assert outdated == [], "run: python docs/diagrams.py"


def test_diagram_contains_every_package_once(diagrams: Any) -> None:
    sources = ROOT / "packages" / "dragoman" / "src" / "dragoman"
    packages = {path.parent.name for path in sources.glob("*/__init__.py")}
    others = {path.parent.name for path in (ROOT / "packages").glob("*/src/*/__init__.py")}
    drawn = [name for layer in diagrams.read_layers() for name in layer] + [
        name for name, _ in diagrams.ASIDE
    ]
    assert sorted(drawn) == sorted({*packages, *others, "ui"} - {"dragoman"})


def test_tour_diagram_has_files_of_page(diagrams: Any) -> None:
    page = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \| \[`.*/([^/`]+)`\]", page, re.MULTILINE)
    drawn = sorted(file for files in diagrams.TOUR.values() for file in files)
    assert drawn == [(int(number), name) for number, name in listed]


def test_diagram_labels_exist_in_code(diagrams: Any) -> None:
    names = {name for pair in diagrams.BETWEEN for name in pair} - {
        "ASGI messages",
        "bytes",
        "bytes of the body",
    }
    known = {
        *vars(dragoman.core.request),
        *vars(dragoman.core.events),
        *vars(dragoman.core.token_engine),
    }
    assert names <= known, names - known


@pytest.mark.parametrize("name", NAMES)
def test_diagram_loads_no_resources_and_has_description(name: str) -> None:
    text = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert not re.search(r"href|url\(|@import|<script|\bon\w+=", text)
    assert "prefers-color-scheme: dark" in text
    used = [
        path
        for path in (ROOT / "docs").rglob("*.md")
        if f"images/{name}.svg" in path.read_text(encoding="utf-8")
    ]
    assert used, "no page shows it"
