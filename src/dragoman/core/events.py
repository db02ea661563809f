"""The canonical event stream: what every engine emits and every dialect renders.

    stream := Started (PromptTokens | any choice's events, interleaved)* Finished
    choice := part* ChoiceFinished
    part   := TextDelta+ | ReasoningDelta+ | RefusalDelta+ | ToolCallStart ToolCallDelta*

Within one choice parts are strictly sequential: a ToolCallDelta always belongs to the ToolCallStart
before it, and a part ends where the next one begins. There is no "part end" event to forget.
`grammar.Grammar` enforces all of this.

Tokens ride on the event that releases their text, so that logprobs, token ids and usage have one source:
the tokens of a choice, in order, are the concatenation of `tokens` over its events.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

UNKNOWN_TOKEN_ID = -1
"""The id of a token of which an engine tells only the text."""


class Alternative(Struct, frozen=True, gc=False):
    """A token that could have stood here. Best first, so that the rank is the position plus one."""

    id: int
    text: str
    logprob: float
    raw: bytes | None = None


class Token(Struct, frozen=True, gc=False):
    """One token of an answer or a prompt.

    id: UNKNOWN_ID where the engine does not tell.
    text: what it reads as; U+FFFD stands for bytes that are no whole character alone.
    logprob: natural logarithm of its probability; None where it was not asked for or is unknown.
    raw: its bytes where `text.encode()` is not them.
    rank: 1 for the most likely token; None where unknown.
    special: a control token of the vocabulary, not text that looks like one.
    markup: its text is in no part of the answer: a mark around reasoning or calls, or white space beside one.
    """

    id: int
    text: str
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    raw: bytes | None = None
    rank: int | None = None
    special: bool = False
    markup: bool = False

    @property
    def utf8(self) -> bytes:
        return self.text.encode() if self.raw is None else self.raw


class Usage(Struct, frozen=True):
    """Token counts of a whole call, all choices together. None means unknown; a zero is a zero."""

    prompt: int
    completion: int
    cached: int | None = None
    reasoning: int | None = None


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    ABORT = "abort"
    """Ended from outside (an administrator's abort, shutdown); the answer is incomplete."""


class ClearedKind(StrEnum):
    RESULTS = "results"
    REASONING = "reasoning"


class AppliedEdit(Struct, frozen=True):
    """An edit that was made to a conversation, see `request.Edit`.

    count: of results, or of turns whose reasoning was cleared. tokens: by which the prompt is shorter.
    """

    cleared: ClearedKind
    count: int
    tokens: int


class Started(Struct, frozen=True, tag=True):
    """The prompt was accepted. Headers may be sent; nothing has been generated yet.

    Choice c belongs to prompt c // (choices / prompts). edited: in the order in which they were made.
    """

    prompt_tokens: int
    cached_tokens: int | None = None
    choices: int = 1
    prompts: int = 1
    edited: tuple[AppliedEdit, ...] = ()


class PromptTokens(Struct, frozen=True, tag=True):
    """The prompt itself, with its logprobs where asked for. At most once a prompt, before its choices."""

    prompt: int
    text: str
    tokens: tuple[Token, ...]


class TextDelta(Struct, frozen=True, tag=True, gc=False):
    choice: int
    text: str
    tokens: tuple[Token, ...] = ()


class ReasoningDelta(Struct, frozen=True, tag=True, gc=False):
    choice: int
    text: str
    tokens: tuple[Token, ...] = ()


class RefusalDelta(Struct, frozen=True, tag=True, gc=False):
    choice: int
    text: str
    tokens: tuple[Token, ...] = ()


class ToolCallStart(Struct, frozen=True, tag=True):
    """A call begins. `custom` marks a free-form tool, whose argument deltas are its raw input, not JSON."""

    choice: int
    id: str
    name: str
    tokens: tuple[Token, ...] = ()
    custom: bool = False


class ToolCallDelta(Struct, frozen=True, tag=True, gc=False):
    choice: int
    arguments: str
    tokens: tuple[Token, ...] = ()


class WeightSpan(Struct, frozen=True):
    """Tokens `start` to `end` (not included) of an answer, counted from 0, were sampled by weights of this version."""

    version: str
    start: int
    end: int


class ChoiceFinished(Struct, frozen=True, tag=True):
    """stop: the matched stop string, or the id of the matched stop token other than end-of-sequence.

    kv_transfer_params: as in `engine.Ended`. weights: which ones sampled its tokens, without a gap; None where the
    engine does not tell.
    """

    choice: int
    reason: FinishReason
    stop: str | int | None = None
    tokens: tuple[Token, ...] = ()
    kv_transfer_params: str | None = None
    weights: tuple[WeightSpan, ...] | None = None


class Finished(Struct, frozen=True, tag=True):
    usage: Usage


Delta = TextDelta | ReasoningDelta | RefusalDelta | ToolCallStart | ToolCallDelta
Event = Started | PromptTokens | Delta | ChoiceFinished | Finished

ChoiceEvent = Delta | ChoiceFinished
"""What belongs to one choice."""


def get_answer_tokens(event: Event) -> tuple[Token, ...]:
    """The tokens of the answer that ride on this event."""
    return () if isinstance(event, (Started, PromptTokens, Finished)) else event.tokens
