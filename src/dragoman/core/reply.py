"""The finished answer, and the one fold that makes it out of events."""

from __future__ import annotations

from msgspec import Struct

from .events import (
    ChoiceFinished,
    Edited,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    WeightSpan,
)
from .message import Reasoning, Refusal, Text, ToolCall

Part = Text | Reasoning | Refusal | ToolCall


class Choice(Struct, frozen=True):
    """tail: tokens that released no text of their own, such as end-of-sequence.

    kv_transfer_params, weights: as in `events.ChoiceFinished`.
    """

    parts: tuple[Part, ...]
    reason: FinishReason
    stop: str | int | None = None
    tail: tuple[Token, ...] = ()
    kv_transfer_params: str | None = None
    weights: tuple[WeightSpan, ...] | None = None

    @property
    def called_tools(self) -> bool:
        return any(isinstance(part, ToolCall) for part in self.parts)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens of this choice in the order in which they were sampled."""
        return (*(token for part in self.parts for token in part.tokens), *self.tail)

    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    def refusal(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Refusal))

    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


class Reply(Struct, frozen=True):
    """prompts: the PromptTokens of each prompt, None where they were not asked for. edited: as in `Started`."""

    choices: tuple[Choice, ...]
    usage: Usage
    prompts: tuple[PromptTokens | None, ...] = (None,)
    edited: tuple[Edited, ...] = ()

    @property
    def kv_transfer_params(self) -> str | None:
        """Those of the first choice that has any: a whole answer has one place for them."""
        return next((each.kv_transfer_params for each in self.choices if each.kv_transfer_params is not None), None)


class _Open:
    """The part being written, with its pieces not yet joined."""

    def __init__(self, kind: type[Part], id: str = "", name: str = "", custom: bool = False) -> None:
        self.kind, self.id, self.name, self.custom = kind, id, name, custom
        self.pieces: list[str] = []
        self.tokens: list[Token] = []

    def close(self) -> Part:
        text, tokens = "".join(self.pieces), tuple(self.tokens)
        if self.kind is ToolCall:
            return ToolCall(self.id, self.name, text, tokens, self.custom)
        if self.kind is Reasoning:
            return Reasoning(text, tokens)
        return Refusal(text, tokens) if self.kind is Refusal else Text(text, tokens)


class Fold:
    """Feed events in; `reply()` is the answer so far. Streaming and non-streaming share it."""

    def __init__(self) -> None:
        self._parts: list[list[_Open]] = []
        self._ends: list[ChoiceFinished | None] = []
        self._prompts: list[PromptTokens | None] = []
        self._usage = Usage(0, 0)
        self._edited: tuple[Edited, ...] = ()

    def feed(self, event: Event) -> None:
        match event:
            case TextDelta(choice, text, tokens):
                self._append(choice, Text, text, tokens)
            case ReasoningDelta(choice, text, tokens):
                self._append(choice, Reasoning, text, tokens)
            case ToolCallDelta(choice, arguments, tokens):
                self._append(choice, ToolCall, arguments, tokens)
            case RefusalDelta(choice, text, tokens):
                self._append(choice, Refusal, text, tokens)
            case ToolCallStart(choice, id, name, tokens, custom):
                part = _Open(ToolCall, id, name, custom)
                part.tokens.extend(tokens)
                self._parts[choice].append(part)
            case ChoiceFinished():
                self._ends[event.choice] = event
            case Finished(usage):
                self._usage = usage
            case PromptTokens():
                self._prompts[event.prompt] = event
            case Started(prompt_tokens, cached, choices, prompts, edited):
                self._parts = [[] for _ in range(choices)]
                self._ends = [None] * choices
                self._prompts = [None] * prompts
                self._usage = Usage(prompt_tokens, 0, cached)
                self._edited = edited

    def _append(self, choice: int, kind: type[Part], text: str, tokens: tuple[Token, ...]) -> None:
        parts = self._parts[choice]
        if not parts or parts[-1].kind is not kind:
            parts.append(_Open(kind))
        parts[-1].pieces.append(text)
        parts[-1].tokens.extend(tokens)

    def last_part(self, choice: int = 0) -> Part:
        """The part that is being written; at least one must have begun."""
        return self._parts[choice][-1].close()

    def reply(self) -> Reply:
        """The answer so far. A choice that has not ended yet says ABORT."""
        choices = tuple(self._choice(parts, end) for parts, end in zip(self._parts, self._ends, strict=True))
        return Reply(choices, self._usage, tuple(self._prompts), self._edited)

    @staticmethod
    def _choice(parts: list[_Open], end: ChoiceFinished | None) -> Choice:
        closed = tuple(part.close() for part in parts)
        if end is None:
            return Choice(closed, FinishReason.ABORT)
        return Choice(closed, end.reason, end.stop, end.tokens, end.kv_transfer_params, end.weights)
