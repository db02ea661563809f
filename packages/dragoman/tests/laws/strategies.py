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
from dragoman.core.server_tools import (
    IMAGE_FORMATS,
    ListedTool,
    ServerToolName,
    ToolFailureKind,
    ToolImage,
    ToolList,
    ToolOutcome,
)

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
    server_tools: whether calls may have outcomes, and servers lists of tools.
    """

    parts: tuple[type[ReplyPart], ...] = (Text, Reasoning, Refusal, ToolCall)
    reasons: tuple[FinishReason, ...] = tuple(FinishReason)
    max_choices: int = 3
    max_prompts: int = 1
    custom: bool = True
    prompts: bool = True
    weights: bool = True
    server_tools: bool = False


ANYTHING = Kinds()
OPENAI_REASONS = tuple(
    reason for reason in FinishReason if reason is not FinishReason.CACHE_THRESHOLD
)
"""Those with a word of OpenAI's; the other is llm-d's, sent on demand."""


edited = st.lists(
    st.builds(AppliedEdit, st.sampled_from(ClearedKind), st.integers(1, 9), st.integers(1, 999)),
    max_size=2,
).map(tuple)


SERVER_TOOLS = tuple(
    ServerToolName(
        qualified=name, server="crm", name=name, needs_approval=needs_approval, hosted=hosted
    )
    for name, needs_approval, hosted in (
        ("a", False, ""),
        ("b", True, ""),
        ("search", False, "web_search"),
        ("code", False, "code_interpreter"),
        ("files", False, "file_search"),
        ("draw", False, "image_generation"),
        ("shell", False, "shell"),
    )
)
"""The tools that this server calls; only calls of these may have an outcome."""
CITING = (
    "See https://x.example.",
    "(https://y.example/1) or https://x.example",
    "In a.md, said https://x.example and b.md; a.md again, not xa.md.",
)
"""Texts that name links and files of the outcomes."""
STRUCTURED = (
    '{"results":[{"file_id":"f","filename":"a.md","score":0.5,"text":"A"},{"filename":"b.md"},7]}',
    '{"results":[{"attributes":{"a":1,"b":true,"c":"\u2028","d":[]},"content":[{"text":"é"}]}]}',
    '{"output":[{"stdout":"1\n","stderr":"","exit_code":0},{"stderr":"\u2028","timed_out":true}]}',
    '{"stdout":"1","exit_code":2}',
    '{"output":[]}',
    "{}",
)
"""Structured content in the shapes of hosted tools, and in others."""
outcomes = st.builds(
    ToolOutcome,
    text=st.text(ALPHABET, max_size=6)
    | st.sampled_from(("[x](https://x.example)", '[{"url":"https://y.example/1","title":"y"}]')),
    failure=st.none() | st.sampled_from(ToolFailureKind),
    code=st.sampled_from((-32000, -32001, -32602, 429)),
    approval=st.sampled_from((None, "mcpr_1")),
    structured=st.none() | st.sampled_from(STRUCTURED),
    images=st.lists(
        st.builds(ToolImage, st.sampled_from(tuple(IMAGE_FORMATS)), st.just("iVBORw==")), max_size=3
    ).map(tuple),
)
HOSTED_ARGUMENTS = (
    '{"commands":["ls","pwd"],"timeout_ms":5,"max_output_length":9}',
    '{"command":"ls"}',
    '{"queries":["a","b"]}',
    '{"prompt":"a cat","size":"1x1"}',
)
lists = st.lists(
    st.builds(
        ToolList,
        server=st.just("crm"),
        tools=st.sampled_from(((), (ListedTool(name="find", schema='{"type": "object"}'),))),
        error=st.sampled_from((None, "down")),
    ),
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
    ends_empty = (
        len(queues) == 1
        and len(merged) == 1
        and isinstance(end := merged[0], ChoiceFinished)
        and not end.tokens
        and draw(st.booleans())
    )
    started = Started(
        prompt,
        usage.cached,
        len(queues),
        prompts,
        draw(edited),
        ends_empty=ends_empty,
        tool_lists=draw(lists) if kinds.server_tools else (),
    )
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
    reason = draw(st.sampled_from(kinds.reasons))
    for i in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(kinds.parts))
        if kind is ToolCall:
            custom = kinds.custom and draw(st.booleans())
            text = draw(texts if custom else arguments)
            server_tools = {tool.qualified: tool for tool in SERVER_TOOLS if kinds.server_tools}
            name = draw(st.sampled_from(list(server_tools)) | names if server_tools else names)
            if name in server_tools and draw(st.booleans()):
                text = draw(st.sampled_from(HOSTED_ARGUMENTS))
            events.append(
                ToolCallStart(choice, f"call_{choice}_{i}", name, draw(tokens(most=1)), custom)
            )
            events += [
                ToolCallDelta(choice, piece, draw(tokens())) for piece in draw(_pieces(text))
            ]
            if (tool := server_tools.get(name)) is not None:
                # Of a complete answer, only a call that awaits approval has not been made.
                is_open = reason is not FinishReason.STOP or tool.needs_approval
                outcome = draw(st.none() | outcomes if is_open else outcomes)
                if outcome is not None:
                    events.append(ToolCallDelta(choice, "", outcome=outcome))
        else:
            delta = (
                TextDelta if kind is Text else ReasoningDelta if kind is Reasoning else RefusalDelta
            )
            seal = draw(st.sampled_from(("", "", *SIGNATURES))) if kind is Reasoning else ""
            # Redacted reasoning has a seal and no text.
            if not seal or draw(st.booleans()):
                text = draw(texts | st.sampled_from(CITING) if kinds.server_tools else texts)
                events += [delta(choice, piece, draw(tokens())) for piece in draw(_pieces(text))]
            if seal:
                events.append(ReasoningDelta(choice, "", draw(tokens(most=1)), seal))
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
        tuple(choices),
        finished.usage,
        tuple(prompts or [None] * started.prompts),
        started.edited,
        tool_lists=started.tool_lists,
    )


def _append(parts: list[ReplyPart], event: Event) -> None:
    last = parts[-1] if parts else None
    match event, last:
        case ToolCallStart(_, id, name, toks, custom), _:
            parts.append(ToolCall(id, name, "", toks, custom))
        case ToolCallDelta(_, piece, toks), ToolCall(id, name, text, before, custom):
            parts[-1] = ToolCall(id, name, text + piece, before + toks, custom, event.outcome)
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
