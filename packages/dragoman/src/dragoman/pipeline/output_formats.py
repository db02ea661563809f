"""How a model writes reasoning and tool calls, and the tokens that these formats need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.syntax import ReasoningFormat, ToolFormat


@dataclass(frozen=True, slots=True)
class ParserTokens:
    """Tokens of the formats that a model writes, the same for every request.

    markers: control tokens whose text the parsers need.
    call_openers: the tokens that open a tool call, each as a sequence.
    """

    markers: frozenset[int] = frozenset()
    call_openers: tuple[tuple[int], ...] = ()


@dataclass(frozen=True, slots=True)
class OutputFormats:
    """How a model writes reasoning and tool calls; None if it does not, or if it is not
    known.
    """

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None

    def find_tokens(self, special: Mapping[str, int]) -> ParserTokens:
        """Find the tokens of these formats among a tokenizer's special tokens."""
        markers = [
            marker
            for parser in (self.tools, self.reasoning)
            if parser is not None
            for marker in parser.markers
        ]
        call_openers = () if self.tools is None else self.tools.call_openers
        return ParserTokens(
            # A marker may consist of several control tokens, or of one and text:
            # `<|action_start|><|plugin|>`.
            frozenset(
                id for text, id in special.items() if any(text in marker for marker in markers)
            ),
            tuple((special[marker],) for marker in call_openers if marker in special),
        )
