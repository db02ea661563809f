"""The API reference lists every public name, and their docstrings have the form that
the site renders: Google style.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman

ROOT = Path(__file__).parents[2]
NAMES = sorted(set(dragoman.__all__) - {"__version__"})
DESCRIBED = [
    name
    for name in NAMES
    if inspect.isclass(getattr(dragoman, name)) or inspect.isfunction(getattr(dragoman, name))
]
"""The classes and functions. The others are values, whose docstrings exist in the
source alone.
"""
SECTIONS = {"Args", "Attributes", "Raises", "Returns", "Yields"}


def find_errors(doc: str, known: set[str]) -> list[str]:
    """List what a renderer of Google style would show wrongly.

    Args:
        doc: a docstring without its indentation.
        known: the parameters of the function, or the attributes of the class.
    """
    errors: list[str] = []
    section = ""
    for line in doc.splitlines():
        if not line.startswith(" "):
            heading = re.fullmatch(r"(\w+):", line)
            section = heading[1] if heading and heading[1] in SECTIONS else ""
            if not section and re.match(r"\w+(, \w+)*:( |$)", line):
                errors.append(f"not in a section: {line}")
            if re.search(r"(^|\. )Raises:? \w+", line):
                errors.append(f"not in a section Raises: {line}")
        elif section and re.match(r"    \S", line):
            item = re.fullmatch(r"    (\w+): .+", line)
            if item is None:
                errors.append(f"no item: {line}")
            elif section in ("Args", "Attributes") and item[1] not in known:
                errors.append(f"unknown: {item[1]}")
    return errors


def list_docstrings(value: object) -> Iterator[tuple[str, set[str]]]:
    """Yield the docstrings of a class or function and of its public methods, each with
    the names that it may describe.
    """
    if not inspect.isclass(value):
        assert callable(value)
        yield inspect.getdoc(value) or "", set(inspect.signature(value).parameters)
        return
    source = inspect.getsource(value)
    known = {*dir(value), *inspect.get_annotations(value), *re.findall(r"self\.(\w+) =", source)}
    yield inspect.cleandoc(value.__dict__.get("__doc__") or ""), known
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else member
        is_public = not name.startswith("_") or name == "__init__"
        if inspect.isfunction(function) and is_public and function.__doc__:
            yield inspect.cleandoc(function.__doc__), set(inspect.signature(function).parameters)


def test_api_page_lists_every_public_name_once():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = Counter(re.findall(r"^::: dragoman\.(\w+)$", page, re.MULTILINE))
    assert listed == Counter(NAMES)


@pytest.mark.parametrize("name", DESCRIBED)
def test_public_docstring_has_form_of_reference(name: str):
    docstrings = list(list_docstrings(getattr(dragoman, name)))
    assert docstrings[0][0], f"{name} has no docstring"
    assert [error for doc, known in docstrings for error in find_errors(doc, known)] == []


@pytest.mark.parametrize(
    ("doc", "error"),
    [
        ("A thing.\n\nsize: its size.", "not in a section: size"),
        ("A thing.\n\nAttributes:\n    length: its length.", "unknown: length"),
        ("A thing.\n\nAttributes:\n    its size", "no item"),
        ("Do a thing. Raises ValueError.", "not in a section Raises"),
        ("Do a thing.\n\nRaises: ValueError.", "not in a section"),
    ],
)
def test_find_errors_reports_other_forms(doc: str, error: str):
    assert any(error in found for found in find_errors(doc, {"size"}))


def test_find_errors_accepts_google_style():
    doc = "A thing.\n\nIt has a size: see below.\n\nArgs:\n    size: its size,\n        in bytes."
    assert find_errors(doc, {"size"}) == []
