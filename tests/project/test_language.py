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
from .code_metrics import ROOT, Module

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


def test_names_contain_no_banned_words():
    assert code_metrics.find_banned_names(modules() + other_modules()) == []


def test_test_names_refer_to_clients_not_people():
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


def test_function_names_are_not_participles():
    assert code_metrics.find_participle_functions(modules()) == []


def test_find_participle_functions_detects_participles():
    tree = ast.parse(
        "def _named_tools(): ...\ndef found(): ...\ndef embed(): ...\n@property\ndef used(): ..."
    )
    names = code_metrics.find_participle_functions([Module(Path("a.py"), "a", tree, [])])
    assert names == ["a:1 _named_tools", "a:2 found"]


def test_modules_have_no_import_cycle():
    assert code_metrics.find_import_cycle(modules()) == []


def test_find_import_cycle_detects_cycle():
    texts = {
        "a": "from . import b\nif 1:\n    import p.c",
        "b": "from .c import x",
        "c": "from p.b import y",
    }
    trees = [
        Module(Path(f"{name}.py"), f"p.{name}", ast.parse(text), []) for name, text in texts.items()
    ]
    assert code_metrics.find_import_cycle(trees) == ["p.b", "p.c", "p.b"]


def test_public_class_names_are_unique():
    assert code_metrics.find_repeated_classes(modules()) == {}


def test_class_docstrings_do_not_begin_with_field():
    assert code_metrics.find_docstrings_that_begin_with_a_field(modules()) == []


def test_small_modules_have_several_importers():
    assert set(code_metrics.find_small_single_importer(modules())) - SMALL_MODULES == set()


def test_single_use_helper_ratio_stays_below_limit():
    once = code_metrics.find_private_used_once(modules())
    assert len(once) / len(code_metrics.find_functions(modules())) <= MAX_PRIVATE_USED_ONCE


def test_commit_title_rule_is_documented():
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
def test_split_name_returns_words(name: str, words: set[str]):
    assert code_metrics.split_name(name) == words
