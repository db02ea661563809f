"""Names, docstrings, imports and layout follow CONTRIBUTING.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from . import code_metrics
from .code_metrics import ROOT, Module, parse_module


@cache
def modules() -> list[Module]:
    return code_metrics.load_modules()


@cache
def other_modules() -> list[Module]:
    return code_metrics.load_other_modules()


def every_module() -> list[Module]:
    return [*modules(), *other_modules()]


def parse(text: str, name: str = "p.a") -> Module:
    return parse_module(Path(f"{name.rpartition('.')[2]}.py"), name, text)


def test_all_packages_are_checked():
    packages = {module.name.partition(".")[0] for module in modules()}
    assert packages == {
        "dragoman",
        "dragoman_check",
        "dragoman_cli",
        "dragoman_http",
        "dragoman_sim",
        "pytest_dragoman",
    }
    folders = {module.name.partition(".")[0] for module in other_modules()}
    assert folders == {"benchmarks", "deploy", "docs", "requirements", "tests", "training"}


def test_names_contain_no_banned_words():
    assert code_metrics.find_banned_names(every_module()) == []


def test_find_banned_names_detects_metaphor_and_participle():
    module = parse("kept = 1\ndef open_door(told): ...\ndef test_pages_are_kept(): ...")
    assert sorted(code_metrics.find_banned_names([module])) == [
        "p.a:1 kept",
        "p.a:2 open_door",
        "p.a:2 told",
    ]


def test_test_names_refer_to_clients_not_people():
    people = {
        *{"anybody", "anyone", "everybody", "everyone", "nobody", "somebody", "someone"},
        *{"who", "whom"},
    }
    assert [
        function.name
        for module in every_module()
        for function in module.functions
        if function.name.startswith("test_") and people & set(function.name.split("_"))
    ] == []


def test_test_names_are_short_sentences():
    assert code_metrics.find_bad_test_names(every_module()) == []


@pytest.mark.parametrize(
    ("name", "is_good"),
    [
        ("test_stream_ends_with_error_when_upstream_disconnects", True),
        ("test_" + "a" * 55, True),
        ("test_" + "a" * 56, False),
        ("test_Stream_ends", False),
        ("test_stream_that_broke_off_ends", False),
        ("test_what_is_sent", False),
        ("test_whatever_the_client_sends_is_checked", False),
    ],
)
def test_is_good_test_name_detects_long_and_relative_names(name: str, is_good: bool):
    assert code_metrics.is_good_test_name(name) is is_good


def test_function_names_are_not_participles():
    assert code_metrics.find_participle_functions(modules()) == []


def test_find_participle_functions_detects_participles():
    module = parse(
        "def _named_tools(): ...\ndef found(): ...\ndef embed(): ...\n@property\ndef used(): ..."
    )
    names = code_metrics.find_participle_functions([module])
    assert sorted(names) == ["p.a:1 _named_tools", "p.a:2 found"]


def test_modules_have_no_import_cycle():
    assert code_metrics.find_import_cycles(modules()) == []


def test_find_import_cycles_detects_cycles():
    texts = {
        "p.a": "from . import b",
        "p.b": "from .c import x",
        "p.c": "from p.b import y",
        "p.d": "if TYPE_CHECKING:\n    from .e import z",
        "p.e": "def f():\n    import p.d",
        "p.f": "from . import a, e",
    }
    found = code_metrics.find_import_cycles([parse(text, name) for name, text in texts.items()])
    assert sorted(found) == [["p.b", "p.c"], ["p.d", "p.e"]]


def test_public_class_names_are_unique():
    assert code_metrics.find_repeated_classes(modules()) == {}


def test_find_repeated_classes_ignores_other_packages():
    texts = {"p.a": "class A: ...", "p.b": "class A: ...", "q.a": "class B: ...", "p.c": "B = 1"}
    found = code_metrics.find_repeated_classes(parse(text, name) for name, text in texts.items())
    assert found == {"A": ["p.a", "p.b"]}


def test_json_type_names_have_one_meaning():
    found = code_metrics.find_ambiguous_aliases(modules())
    assert {name: places for name, places in found.items() if name.startswith("Json")} == {}


def test_find_ambiguous_aliases_detects_second_meaning():
    texts = {
        "p.a": "JsonValue = int | str\nPath = list[int]",
        "p.b": "JsonValue: TypeAlias = int\nPath = list[int]",
        "p.c": "JsonObject = dict[str, int]",
        "p.d": "class JsonObject: ...",
        "q.a": "Path = list[str]",
    }
    found = code_metrics.find_ambiguous_aliases(parse(text, name) for name, text in texts.items())
    assert found == {
        "JsonValue": ["int | str in p.a", "int in p.b"],
        "JsonObject": ["dict[str, int] in p.c", "a class in p.d"],
    }


def test_class_docstrings_do_not_begin_with_field():
    assert code_metrics.find_docstrings_that_begin_with_a_field(modules()) == []


def test_modules_have_no_section_headings():
    assert code_metrics.find_section_headings(modules()) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import a\n\n# A heading.\n\nb = 1\n", [3]),
        ("import a\n\n# A heading\n# of two lines.\n\nb = 1\n", [3]),
        ("import a\n\n# About b.\nb = 1\n", []),
        ("a = [\n\n# About 1.\n\n    1,\n]\n", []),
        ('a = """\n\n# A title.\n\n"""\n', []),
        ("# noqa: X\n\nimport a\n", []),
        ("a = 1\n\n\n# The last line.\n", [4]),
    ],
)
def test_headings_are_comments_between_blank_lines(text: str, lines: list[int]):
    assert parse(text).headings == lines


def test_attributes_are_not_assigned_as_tuple():
    assert code_metrics.find_packed_attributes(every_module()) == []


@pytest.mark.parametrize(
    ("statement", "is_packed"),
    [
        ("self.a, self.b = a, 0", True),
        ("a, self.b = 1, 2", True),
        ("a, b = 1, 2", False),
        ("self.a, self.b = pair", False),
        ("self.a, self.b = self.b, self.a", False),
        ("a, self.a = self.a, None", False),
    ],
)
def test_find_packed_attributes_ignores_exchange(statement: str, is_packed: bool):
    assert bool(code_metrics.find_packed_attributes([parse(statement)])) is is_packed


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
