"""The cache of composed grammars."""

from __future__ import annotations

import msgspec

from dragoman.constraints.response_grammar import ConstraintGrammar
from dragoman.core.message import FunctionTool, ToolChoice
from dragoman.pipeline.composed_grammars import ComposedGrammar, ComposedGrammars, GrammarSource

SOURCE = GrammarSource("", None, "", (FunctionTool("f"),), ToolChoice(), True, None, False)
COMPOSED = ComposedGrammar(ConstraintGrammar("start: /a/"), ("not enforced",))


def name_owner(name: str) -> GrammarSource:
    return msgspec.structs.replace(SOURCE, owner=name)


def test_composed_grammars_found_only_for_equal_source() -> None:
    grammars = ComposedGrammars()
    grammars.add(SOURCE, COMPOSED)
    # Another request's structs are equal, not identical.
    again = msgspec.structs.replace(SOURCE, tools=(FunctionTool("f"),))
    assert grammars.find(again) is COMPOSED
    assert grammars.find(name_owner("a")) is None
    for name, value in (("tools", (FunctionTool("g"),)), ("is_strict", True)):
        assert grammars.find(msgspec.structs.replace(SOURCE, **{name: value})) is None


def test_composed_grammars_full_evicts_least_recently_used() -> None:
    grammars = ComposedGrammars()
    grammars.add(SOURCE, COMPOSED)
    size = grammars.n_chars
    grammars = ComposedGrammars(2 * size)
    for name in "ab":
        grammars.add(name_owner(name), COMPOSED)
    assert grammars.find(name_owner("a")) is COMPOSED
    grammars.add(name_owner("c"), COMPOSED)
    found = [grammars.find(name_owner(name)) is not None for name in "abc"]
    assert found == [True, False, True]
    assert grammars.n_chars <= 2 * size
    large = ComposedGrammar(ConstraintGrammar("a" * 2 * size), ())
    grammars.add(name_owner("d"), large)
    assert grammars.find(name_owner("d")) is None
