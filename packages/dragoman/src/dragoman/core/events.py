"""The canonical event stream, which every engine emits and every dialect renders.

    stream := Started (PromptTokens | any choice's events, interleaved)* Finished
    choice := part* ChoiceFinished
    part   := TextDelta+ | ReasoningDelta+ | RefusalDelta+ | ToolCallStart ToolCallDelta*

Within one choice parts are strictly sequential: a ToolCallDelta always belongs to the
ToolCallStart before it, and a part ends where the next one begins. There is no "part
end" event that an engine could omit. `event_grammar.EventGrammar` enforces these rules.

Tokens are carried by the event that releases their text, so that logprobs, token ids
and usage have one source: the tokens of a choice, in order, are the concatenation of
`tokens` over its events.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from .server_tools import ToolList, ToolOutcome

UNKNOWN_TOKEN_ID = -1
"""The id of a token if an engine reports only its text."""


class Alternative(Struct, frozen=True, gc=False):
    """An alternative at a token's position. Alternatives are sorted best first: the
    rank is the index plus one.

    Attributes:
        id: its token id.
        text: its text, as in `Token`.
        logprob: natural logarithm of its probability.
        raw: its bytes, as in `Token`.
    """

    id: int
    text: str
    logprob: float
    raw: bytes | None = None


class Token(Struct, frozen=True, gc=False):
    """One token of an answer or a prompt.

    Attributes:
        id: UNKNOWN_TOKEN_ID if the engine does not report it.
        text: its text; bytes that do not form a complete character are replaced by
            U+FFFD.
        logprob: natural logarithm of its probability; None if not requested or
            unknown.
        top: alternatives, best first.
        raw: its bytes if they differ from `text.encode()`.
        rank: 1 for the most likely token; None if unknown.
        special: a control token of the vocabulary, not text that looks like one.
        markup: its text belongs to no part of the answer: a delimiter of reasoning
            or calls, or whitespace next to one.
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
        """Its bytes: `raw`, or else those of `text`."""
        return self.text.encode() if self.raw is None else self.raw


class Usage(Struct, frozen=True):
    """Token counts of a whole request, all choices together. None is unknown, which
    differs from 0.

    Attributes:
        prompt: tokens of the prompt.
        completion: tokens that were generated.
        cached: prompt tokens that were read from the prefix cache.
        reasoning: generated tokens that are reasoning.
        written: prompt tokens that were written to the prefix cache.
        is_estimate: `prompt` or `completion` is estimated from the text, since the
            engine does not report it.
    """

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    written: int | None = None
    is_estimate: bool = False


class FinishReason(StrEnum):
    """The reason why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    """The answer has as many tokens as the request or the server's default allows."""
    CONTEXT_LENGTH = "context_length"
    """The model's context is full, before the request's limit is reached."""
    CONTENT_FILTER = "content_filter"
    ABORT = "abort"
    """Ended by an administrator's abort or by shutdown; the answer is incomplete."""
    CACHE_THRESHOLD = "cache_threshold"
    """Less of the prompt was cached than the request demands, so it was not computed."""


class ClearedKind(StrEnum):
    RESULTS = "results"
    REASONING = "reasoning"


class AppliedEdit(Struct, frozen=True):
    """A context edit that was applied to a conversation, see `request.Edit`.

    count: cleared tool results, or turns whose reasoning was cleared.
    tokens: number of tokens that the prompt became shorter by.
    """

    cleared: ClearedKind
    count: int
    tokens: int


class Started(Struct, frozen=True, tag=True):
    """The prompt was accepted. Headers may be sent; nothing has been generated yet.

    Attributes:
        prompt_tokens: tokens of all prompts; None if they are not known yet.
        cached_tokens: prompt tokens that were read from the prefix cache, see `Usage`.
        choices: number of choices of all prompts; choice c belongs to prompt c //
            (choices / prompts).
        prompts: number of prompts.
        edited: applied context edits, in order.
        written_tokens: prompt tokens that were written to the prefix cache, see
            `Usage`.
        warnings: fields that the engine ignores and that are known only now; each
            warning begins with the field's name.
        elapsed: seconds since the engine started on the prompt, if it reports the start
            late.
        is_estimate: `prompt_tokens` is an estimate; `Finished` has the count, if the
            engine reports it.
        ends_empty: the next event ends the only choice, without an answer, so that a
            dialect can send both at once.
        tool_lists: the tools of servers that were listed for this answer.
    """

    prompt_tokens: int | None
    cached_tokens: int | None = None
    choices: int = 1
    prompts: int = 1
    edited: tuple[AppliedEdit, ...] = ()
    written_tokens: int | None = None
    warnings: tuple[str, ...] = ()
    elapsed: float = 0.0
    is_estimate: bool = False
    ends_empty: bool = False
    tool_lists: tuple[ToolList, ...] = ()


class PromptTokens(Struct, frozen=True, tag=True):
    """The prompt itself, with its logprobs if requested. At most once for each prompt,
    before its choices.

    Attributes:
        prompt: index of the prompt.
        text: its text.
        tokens: its tokens.
    """

    prompt: int
    text: str
    tokens: tuple[Token, ...]


class TextDelta(Struct, frozen=True, tag=True, gc=False):
    """A piece of text.

    Attributes:
        choice: index of the choice.
        text: the text; may be empty.
        tokens: the tokens whose text it releases.
    """

    choice: int
    text: str
    tokens: tuple[Token, ...] = ()


class ReasoningDelta(Struct, frozen=True, tag=True, gc=False):
    """A piece of reasoning.

    Attributes:
        choice: index of the choice.
        text: the text; may be empty.
        tokens: the tokens whose text it releases.
        seal: see `message.Reasoning`; a delta with a seal is the last of its part.
    """

    choice: int
    text: str
    tokens: tuple[Token, ...] = ()
    seal: str = ""


class RefusalDelta(Struct, frozen=True, tag=True, gc=False):
    """A piece of a refusal.

    Attributes:
        choice: index of the choice.
        text: the text; may be empty.
        tokens: the tokens whose text it releases.
    """

    choice: int
    text: str
    tokens: tuple[Token, ...] = ()


class ToolCallStart(Struct, frozen=True, tag=True):
    """The start of a tool call.

    Attributes:
        choice: index of the choice.
        id: id of the call, to which the client's result refers.
        name: name of the tool.
        tokens: the tokens of the name and of the markup before the arguments.
        custom: the tool takes free text; its argument deltas are raw input instead of
            JSON.
    """

    choice: int
    id: str
    name: str
    tokens: tuple[Token, ...] = ()
    custom: bool = False


class ToolCallDelta(Struct, frozen=True, tag=True, gc=False):
    """A piece of the arguments of the tool call that was started last in this choice.

    Attributes:
        choice: index of the choice.
        arguments: a piece of JSON text, or of a custom tool's input.
        tokens: the tokens whose text it releases.
        outcome: what the call returned, if this server made it; only in the last piece.
    """

    choice: int
    arguments: str
    tokens: tuple[Token, ...] = ()
    outcome: ToolOutcome | None = None


class WeightSpan(Struct, frozen=True):
    """The tokens from `start` up to `end` (exclusive, counted from 0) were sampled by
    weights of this version.
    """

    version: str
    start: int
    end: int


class ChoiceFinished(Struct, frozen=True, tag=True):
    """The end of one choice.

    Attributes:
        choice: index of the choice.
        reason: why it ended.
        stop: the matched stop string, or the id of the matched stop token other than
            end-of-sequence.
        tokens: tokens that no other event has carried.
        kv_transfer_params: as in `engine.Ended`.
        weights: the weight versions of all tokens, without gaps; None if the engine
            does not report them.
        warnings: what the client should know about this choice, as in `Started`.
    """

    choice: int
    reason: FinishReason
    stop: str | int | None = None
    tokens: tuple[Token, ...] = ()
    kv_transfer_params: str | None = None
    weights: tuple[WeightSpan, ...] | None = None
    warnings: tuple[str, ...] = ()


class Timings(Struct, frozen=True):
    """The seconds of an answer with one choice, as vLLM's per-request metrics count
    them.

    queue: from admission until the request left the queue.
    first_token: from leaving the queue to the first token; None without a token.
    decode: from the first to the last token.
    """

    queue: float
    first_token: float | None = None
    decode: float = 0.0


class Finished(Struct, frozen=True, tag=True):
    """The end of the answer.

    Attributes:
        usage: token counts of all choices.
        timings: None unless the server reports them.
        warnings: as in `Started`, for what is known only at the end.
    """

    usage: Usage
    timings: Timings | None = None
    warnings: tuple[str, ...] = ()


Delta = TextDelta | ReasoningDelta | RefusalDelta | ToolCallStart | ToolCallDelta
Event = Started | PromptTokens | Delta | ChoiceFinished | Finished
"""An event of an answer; see the grammar at the top of this module."""

TEXT_DELTAS = (TextDelta, ReasoningDelta, RefusalDelta)
"""The deltas of a part that has a text. A tuple, since `isinstance` checks it several
times as fast as a union.
"""
ChoiceEvent = Delta | ChoiceFinished
"""An event that belongs to one choice."""


def get_answer_tokens(event: Event) -> tuple[Token, ...]:
    """Return the answer's tokens that this event carries."""
    return () if isinstance(event, (Started, PromptTokens, Finished)) else event.tokens
