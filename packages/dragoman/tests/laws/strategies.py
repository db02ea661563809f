"""Hypothesis strategies for arbitrary answers, cut and interleaved into arbitrary legal
streams of events.

Every dialect has the same law: an SDK must parse the stream and the full response to
the same result.
"""

from __future__ import annotations

import json

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec import Struct

from dragoman.core.events import (
    Alternative,
    AppliedEdit,
    ChoiceFinished,
    ClearedKind,
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
from dragoman.core.message import Reasoning, Refusal, Text, ToolCall
from dragoman.core.reply import Choice, Reply, ReplyPart

# Beyond ASCII, quotes and control characters: line ends that only some clients treat as
# such, and pseudo-markup.
ALPHABET = 'ab é日😀<>"\\\n\r\t{}/\x00\x7f\x85\u2028\u2029'
texts = st.text(ALPHABET, min_size=1, max_size=12)
names = st.text("abz_.-", min_size=1, max_size=6)
json_values: SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(ALPHABET, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text(ALPHABET, max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
arguments = st.dictionaries(names, json_values, max_size=3).map(json.dumps)

# Every kind of token, listed because drawing them would take most of the time: with
# logprobs or not, likely and impossible, with invalid bytes, special, with alternatives
# of the same text and of other texts.
TOKENS = tuple(
    Token(id, text, logprob, top, raw, rank, special)
    for id, (text, raw) in enumerate(
        (("a", None), (" é", None), ("�", b"\xf0\x9f"), ("�", b"\x98\x80"), ("\u2028", None))
    )
    for logprob, rank in ((None, None), (-0.1, 1), (-7.25, 3), (float("-inf"), None))
    for top in (
        (),
        (Alternative(id, text, -0.1), Alternative(9, "<x>", -3.5)),
        (Alternative(8, "�", -0.1, b"\xf0"),) * 2,
    )
    for special in (
        (False, True) if raw is None else (False,)
    )  # A control token is never part of a character.
)


SIGNATURES = ("anthropic:c2ln\u2028", "anthropic-redacted:ZGF0YQ==", "openai:Z0FBQQ==")
WEIGHTS = (WeightSpan("\u2028", 0, 2), WeightSpan("v2", 2, 5))


class Case(Struct, frozen=True):
    """An answer, and one of the streams that represent it."""

    reply: Reply
    events: tuple[Event, ...]


class Kinds(Struct, frozen=True):
    """The kinds of parts that a dialect supports.

    prompts: whether PromptTokens may occur.
    """

    parts: tuple[type[ReplyPart], ...] = (Text, Reasoning, Refusal, ToolCall)
    reasons: tuple[FinishReason, ...] = tuple(FinishReason)
    max_choices: int = 3
    max_prompts: int = 1
    custom: bool = True
    prompts: bool = True
    weights: bool = True


ANYTHING = Kinds()


edited = st.lists(
    st.builds(AppliedEdit, st.sampled_from(ClearedKind), st.integers(1, 9), st.integers(1, 999)),
    max_size=2,
).map(tuple)


@st.composite
def cases(draw: DrawFn, kinds: Kinds = ANYTHING) -> Case:
    prompts = draw(st.integers(1, kinds.max_prompts))
    each = draw(st.integers(1, kinds.max_choices))
    queues = [draw(_choice_events(i, kinds)) for i in range(prompts * each)]
    values = draw(st.tuples(*[_prompts(i) for i in range(prompts)])) if kinds.prompts else ()
    merged: list[Event] = list(values)
    while live := [queue for queue in queues if queue]:
        merged.append(draw(st.sampled_from(live)).pop(0))
    prompt = draw(st.integers(1, 99))
    usage = Usage(
        prompt,
        sum(
            len(event.tokens)
            for event in merged
            if not isinstance(event, Started | PromptTokens | Finished)
        ),
        draw(st.none() | st.integers(0, prompt)),
        draw(st.none() | st.integers(0, 9)),
    )
    started = Started(prompt, usage.cached, len(queues), prompts, draw(edited))
    events: tuple[Event, ...] = (started, *merged, Finished(usage))
    return Case(_fold_events(events), events)


def tokens(*, most: int = 3) -> SearchStrategy[tuple[Token, ...]]:
    return st.lists(st.sampled_from(TOKENS), max_size=most).map(tuple)


@st.composite
def _prompts(draw: DrawFn, prompt: int) -> PromptTokens:
    listed = draw(tokens(most=4))
    return PromptTokens(prompt, "".join(token.text for token in listed), listed)


@st.composite
def _choice_events(draw: DrawFn, choice: int, kinds: Kinds) -> list[Event]:
    """Draw the events of a choice. Adjacent parts of one kind become one part."""
    events: list[Event] = []
    for i in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(kinds.parts))
        if kind is ToolCall:
            custom = kinds.custom and draw(st.booleans())
            text = draw(texts if custom else arguments)
            events.append(
                ToolCallStart(
                    choice, f"call_{choice}_{i}", draw(names), draw(tokens(most=1)), custom
                )
            )
            events += [
                ToolCallDelta(choice, piece, draw(tokens())) for piece in draw(_pieces(text))
            ]
        else:
            delta = (
                TextDelta if kind is Text else ReasoningDelta if kind is Reasoning else RefusalDelta
            )
            seal = draw(st.sampled_from(("", "", *SIGNATURES))) if kind is Reasoning else ""
            # Redacted reasoning has a seal and no text.
            if not seal or draw(st.booleans()):
                events += [
                    delta(choice, piece, draw(tokens())) for piece in draw(_pieces(draw(texts)))
                ]
            if seal:
                events.append(ReasoningDelta(choice, "", draw(tokens(most=1)), seal))
    reason = draw(st.sampled_from(kinds.reasons))
    stop = draw(st.sampled_from((None, "END", 7))) if reason is FinishReason.STOP else None
    weights = draw(st.sampled_from((None, (), WEIGHTS))) if kinds.weights else None
    return [*events, ChoiceFinished(choice, reason, stop, draw(tokens(most=2)), weights=weights)]


@st.composite
def _pieces(draw: DrawFn, text: str) -> list[str]:
    """Cut a text at random positions. Some pieces are empty, like tokens that released
    no character.
    """
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _fold_events(events: tuple[Event, ...]) -> Reply:
    """Fold events into the answer, independently of core's fold, which this function
    tests.
    """
    started, *middle, finished = events
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    choices: list[Choice] = []
    for i in range(started.choices):
        mine = [
            event
            for event in middle
            if not isinstance(event, Started | PromptTokens | Finished) and event.choice == i
        ]
        parts: list[ReplyPart] = []
        for event in mine:
            _append(parts, event)
        end = mine[-1]
        assert isinstance(end, ChoiceFinished)
        choices.append(Choice(tuple(parts), end.reason, end.stop, end.tokens, weights=end.weights))
    prompts: list[PromptTokens | None] = [
        event for event in middle if isinstance(event, PromptTokens)
    ]
    return Reply(
        tuple(choices), finished.usage, tuple(prompts or [None] * started.prompts), started.edited
    )


def _append(parts: list[ReplyPart], event: Event) -> None:
    last = parts[-1] if parts else None
    match event, last:
        case ToolCallStart(_, id, name, toks, custom), _:
            parts.append(ToolCall(id, name, "", toks, custom))
        case ToolCallDelta(_, piece, toks), ToolCall(id, name, text, before, custom):
            parts[-1] = ToolCall(id, name, text + piece, before + toks, custom)
        case (TextDelta(_, piece, toks), Text(text, before)):
            parts[-1] = Text(text + piece, before + toks)
        case (ReasoningDelta(_, piece, toks, seal), Reasoning(text, before, "")):
            parts[-1] = Reasoning(text + piece, before + toks, seal)
        case (RefusalDelta(_, piece, toks), Refusal(text, before)):
            parts[-1] = Refusal(text + piece, before + toks)
        case TextDelta(_, piece, toks), _:
            parts.append(Text(piece, toks))
        case ReasoningDelta(_, piece, toks, seal), _:
            parts.append(Reasoning(piece, toks, seal))
        case RefusalDelta(_, piece, toks), _:
            parts.append(Refusal(piece, toks))
        case _:
            pass
