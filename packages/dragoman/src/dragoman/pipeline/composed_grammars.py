"""A cache of the grammars that are composed for responses."""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from msgspec import Struct

from ..constraints.response_grammar import ConstraintGrammar, ReasoningSection
from ..core.message import Tool, ToolChoice
from ..core.request import Constraint

MAX_CACHED_CHARS = 2 * 1024 * 1024
"""The size of the cache, in characters of tools, schemas and grammars."""


class GrammarSource(Struct, frozen=True):
    """What a response's grammar is composed of, besides what its model determines, such
    as the syntax of calls.

    owner: each owner finds only its own grammars, so the latency of a request reveals
        nothing about the tools of others.
    tools: all declared tools, by whose positions warnings name them.
    tool_choice, allows_parallel: which of them may be called, and how often.
    is_strict: a keyword that cannot be enforced is an error.
    """

    owner: str
    constraint: Constraint | None
    constraint_param: str
    tools: tuple[Tool, ...]
    tool_choice: ToolChoice | None
    allows_parallel: bool
    reasoning: ReasoningSection | None
    is_strict: bool


class ComposedGrammar(Struct, frozen=True):
    """A composed grammar, each part of which has been compiled.

    grammar: None for free text.
    warnings: what the grammar does not enforce.
    """

    grammar: ConstraintGrammar | None
    warnings: tuple[str, ...]


class ComposedGrammars:
    """An LRU cache of a model's composed grammars, since agents send the same tools and schemas
    with every request. It holds no compiled grammar: the memory of those is limited by
    the compiler.

    max_chars: the size of all entries.
    """

    def __init__(self, max_chars: int = MAX_CACHED_CHARS) -> None:
        self._max_chars = max_chars
        self._entries: OrderedDict[GrammarSource, tuple[ComposedGrammar, int]] = OrderedDict()
        self.n_chars = 0

    def find(self, source: GrammarSource) -> ComposedGrammar | None:
        entry = self._entries.get(source)
        if entry is None:
            return None
        self._entries.move_to_end(source)
        return entry[0]

    def add(self, source: GrammarSource, composed: ComposedGrammar) -> None:
        size = len(msgspec.json.encode((source.tools, source.constraint, composed)))
        if source in self._entries or size > self._max_chars:
            return
        self._entries[source] = composed, size
        self.n_chars += size
        while self.n_chars > self._max_chars:
            _, (_, oldest_size) = self._entries.popitem(last=False)
            self.n_chars -= oldest_size
