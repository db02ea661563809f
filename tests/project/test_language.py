"""Names and docstrings follow CONTRIBUTING.md: the field's terms, and one meaning per
name.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from . import code_metrics
from .code_metrics import Module, ROOT

MAX_PRIVATE_USED_ONCE = 0.12
"""The highest share of functions that are private and referenced once (h11 5 %,
starlette 3 %).
"""

SMALL_MODULES: frozenset[str] = frozenset()
"""Modules that may have under 60 lines and a single importer."""


@cache
def modules() -> list[Module]:
    return code_metrics.load_modules()


@cache
def other_modules() -> list[Module]:
    return code_metrics.load_other_modules()


def test_no_name_has_a_banned_word():
    assert code_metrics.find_banned_names(modules() + other_modules()) == []


def test_test_names_speak_of_clients_and_requests_and_not_of_people():
    people = {
        "who",
        "whom",
        "nobody",
        "somebody",
        "everybody",
        "anybody",
        "everyone",
        "someone",
        "anyone",
    }
    tests = (
        f.name for f in code_metrics.find_functions(other_modules()) if f.name.startswith("test_")
    )
    assert [
        name for name in tests if people & set(name.split("_")) and "speak_of" not in name
    ] == []


def test_no_function_is_named_by_a_participle():
    assert code_metrics.find_participle_functions(modules()) == []


def test_a_participle_is_found():
    tree = ast.parse(
        "def _named_tools(): ...\ndef found(): ...\ndef embed(): ...\n@property\ndef used(): ..."
    )
    names = code_metrics.find_participle_functions([Module(Path("a.py"), "a", tree, [])])
    assert names == ["a:1 _named_tools", "a:2 found"]


def test_modules_do_not_import_each_other_in_a_cycle():
    assert code_metrics.find_import_cycle(modules()) == []


def test_a_cycle_of_imports_is_found():
    texts = {
        "a": "from . import b\nif 1:\n    import p.c",
        "b": "from .c import x",
        "c": "from p.b import y",
    }
    trees = [
        Module(Path(f"{name}.py"), f"p.{name}", ast.parse(text), []) for name, text in texts.items()
    ]
    assert code_metrics.find_import_cycle(trees) == ["p.b", "p.c", "p.b"]


def test_a_public_class_name_is_defined_once():
    assert code_metrics.find_repeated_classes(modules()) == {}


def test_no_class_docstring_begins_with_a_field():
    assert code_metrics.find_docstrings_that_begin_with_a_field(modules()) == []


def test_a_small_module_has_more_than_one_importer():
    assert set(code_metrics.find_small_single_importer(modules())) - SMALL_MODULES == set()


def test_one_use_helpers_do_not_grow_in_number():
    once = code_metrics.find_private_used_once(modules())
    assert len(once) / len(code_metrics.find_functions(modules())) <= MAX_PRIVATE_USED_ONCE


def test_the_rule_for_commit_titles_is_documented():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert "72 characters" in text
    assert re.search(r"`fix:`", text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("_was_told", {"was", "told"}),
        ("StartLimiter", {"start", "limiter"}),
        ("HTTPServer", {"http", "server"}),
    ],
)
def test_names_are_split_into_words(name: str, words: set[str]):
    assert code_metrics.split_name(name) == words
