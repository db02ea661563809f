"""Replies become events, and end at the request's limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import ContextTooLong, RequestError
from dragoman.core.events import (
    ChoiceFinished,
    Finished,
    FinishReason,
    PromptTokens,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    get_answer_tokens,
)
from dragoman.core.message import (
    CustomTool,
    FunctionTool,
    Image,
    Message,
    Reasoning,
    Refusal,
    RemoteMedia,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.core.request import Conversation, GenerateRequest, GenerationLimits, ReasoningOptions
from dragoman.engines.script.script import Chunks, Part
from dragoman.engines.scripted import (
    CallTool,
    Fail,
    Refuse,
    Say,
    Script,
    ScriptEntry,
    Think,
    UsageOverride,
    Wait,
)
from dragoman.engines.scripted.prompt_transcript import TokenizedPrompt, render_transcript
from dragoman.engines.scripted.response_events import generate_events

from .harness import RecordedSleeps, ask, chat, engine, events, user
from .triples import Triples

EVERYTHING = (Think("Let me see."), Say("Hé, 😀!"), CallTool("f", '{"x": "ü"}'), Refuse("No."))


async def test_all_part_kinds_are_emitted_in_order():
    reply = await ask(engine(Script.of(*EVERYTHING)), chat(tools=["f"]))
    choice = reply.choices[0]
    assert [type(part).__name__ for part in choice.parts] == [
        "Reasoning",
        "Text",
        "ToolCall",
        "Refusal",
    ]
    assert (choice.join_reasoning(), choice.join_text(), choice.join_refusal()) == (
        "Let me see.",
        "Hé, 😀!",
        "No.",
    )
    assert [(call.id, call.name, call.arguments) for call in choice.list_calls()] == [
        ("call_1", "f", '{"x": "ü"}')
    ]


async def test_usage_counts_tokens_of_events():
    reply = await ask(engine(Script.of(*EVERYTHING)), chat(tools=["f"]))
    assert reply.usage.completion == len(reply.choices[0].tokens)
    assert reply.usage.reasoning == len(Triples().encode("Let me see.", special=False))


async def test_started_reports_prompt_tokens_and_no_cached_tokens():
    text = "user: 123456"
    first = (await events(engine(Script.of(Say("x"))), chat(user("123456"))))[0]
    assert first == Started(len(text) // 3, 0, written_tokens=0)


async def test_usage_override_replaces_counts():
    script = Script(
        (
            ScriptEntry(
                (Say("x"),), usage=UsageOverride(prompt=10, cached=8, completion=3, reasoning=1)
            ),
        )
    )
    assert (await ask(engine(script))).usage == Usage(10, 3, 8, 1, written=0)


@pytest.mark.parametrize(
    ("chunks", "texts"),
    [
        ("words", ["one", " two", "\nthree"]),
        ("characters", list("one two\nthree")),
        ("whole", ["one two\nthree"]),
        ("tokens", ["one", " tw", "o\nt", "hre", "e"]),
    ],
)
async def test_text_is_split_by_configured_chunks(chunks: Chunks, texts: list[str]):
    script = Script((ScriptEntry((Say("one two\nthree"),), chunks=chunks),))
    pieces = [event.text for event in await events(engine(script)) if isinstance(event, TextDelta)]
    assert pieces == texts


async def test_explicit_text_pieces_become_deltas():
    output = await events(
        engine(Script.of(Say(("a", "", "bcd", "é")), CallTool("f", ("{", "}")))), chat(tools=["f"])
    )
    assert [event.text for event in output if isinstance(event, TextDelta)] == ["a", "bcd", "é"]
    assert [event.arguments for event in output if isinstance(event, ToolCallDelta)] == ["{", "}"]


@given(
    text=st.text(max_size=30),
    limit=st.integers(0, 40),
    chunks=st.sampled_from(["tokens", "words", "characters"]),
)
async def test_max_tokens_truncates_without_token_loss(text: str, limit: int, chunks: Chunks):
    script = Script((ScriptEntry((Say(text), CallTool("tool", text)), chunks=chunks),))
    choice = (
        await ask(engine(script), chat(tools=["tool"], limits=GenerationLimits(limit)))
    ).choices[0]
    full = [id for piece in (text, "tool", text) for id in Triples().encode(piece, special=False)]
    assert [token.id for token in choice.tokens] == full[:limit]
    assert choice.reason is (FinishReason.LENGTH if limit < len(full) else FinishReason.STOP)
    assert text.startswith(choice.join_text())


def test_stop_parameter_is_not_in_engine_capabilities():
    """The engine would search each part separately, but a client sees one text."""
    assert "stop" not in engine().capabilities.parameters


async def test_logprobs_report_probability_one():
    plain = (await ask(engine(Script.of(Say("abc"))))).choices[0].tokens[0]
    alone = (await ask(engine(Script.of(Say("abc"))), chat(logprobs=0))).choices[0].tokens[0]
    ranked = (await ask(engine(Script.of(Say("abc"))), chat(logprobs=5))).choices[0].tokens[0]
    assert (plain.logprob, plain.rank) == (None, None)
    assert (alone.logprob, alone.rank, alone.top) == (0.0, 1, ())
    assert [(top.text, top.logprob) for top in ranked.top] == [("abc", 0.0)]


async def test_token_of_partial_character_keeps_its_bytes():
    tokens = (await ask(engine(Script.of(Say("ab😀"))))).choices[0].tokens
    assert [token.utf8 for token in tokens] == [b"ab\xf0", b"\x9f\x98\x80"]


async def test_text_like_control_token_is_encoded_as_text():
    tokens = (await ask(engine(Script.of(Say("<|end|>"))))).choices[0].tokens
    assert 1 not in [token.id for token in tokens]
    assert not any(token.special for token in tokens)


async def test_choices_are_interleaved():
    script = Script((ScriptEntry((Say("one"),), more=((Say("uno"),),), repeat=True),))
    output = await events(engine(script), chat(choices=3))
    assert [event.choice for event in output if isinstance(event, TextDelta)] == [0, 1, 2]
    reply = await ask(engine(script), chat(choices=3))
    assert [choice.join_text() for choice in reply.choices] == ["one", "uno", "one"]
    assert reply.usage.completion == 3


async def test_choices_share_delays():
    naps = RecordedSleeps()
    script = Script((ScriptEntry((Say("abcdef"), Wait(2.0), Say("g")), delay=1.0, pace=0.5),))
    await ask(engine(script, sleep=naps), chat(choices=2))
    assert naps.slept == [1.0, 0.5, 0.5, 2.0, 0.5]


async def test_answer_is_truncated_at_context_limit():
    script = Script.of(Say("abcdefghi"))
    choice = (await ask(engine(script, max_model_len=4), chat(user("")))).choices[0]
    assert (choice.join_text(), choice.reason) == ("abcdef", FinishReason.LENGTH)


@pytest.mark.parametrize("text", ["123456789", "1" * 100_000])
async def test_prompt_without_room_for_answer_is_rejected(text: str):
    with pytest.raises(ContextTooLong) as rejected:
        await ask(engine(Script.of(Say("x")), max_model_len=5), chat(user(text)))
    assert rejected.value.limit == 5


async def test_plain_prompt_is_tokenized_with_control_tokens():
    request = GenerateRequest("m", "<|end|>abc", return_prompt=True)
    started, prompt, *_ = await events(engine(Script.of(Say("x"))), request)
    assert started == Started(3, 0, written_tokens=0)
    assert isinstance(prompt, PromptTokens)
    assert [token.id for token in prompt.tokens][:2] == [0, 1]


async def test_token_id_prompt_is_returned_unchanged():
    ids = tuple(Triples().encode("<|end|>", special=False))
    _, prompt, *_ = await events(
        engine(Script.of(Say("x"))), GenerateRequest("m", ids, return_prompt=True)
    )
    assert isinstance(prompt, PromptTokens)
    assert tuple(token.id for token in prompt.tokens) == ids


@pytest.mark.parametrize("id", [-1, 10**9])
async def test_token_id_outside_vocab_is_rejected(id: int):
    with pytest.raises(RequestError, match="vocabulary"):
        await ask(engine(Script.of(Say("x"))), GenerateRequest("m", (id,)))


async def test_reasoning_budget_truncates_reasoning_only():
    request = chat(reasoning=ReasoningOptions(budget=2))
    reply = await ask(engine(Script.of(Think("abcdefghi"), Say("ok"))), request)
    assert reply.choices[0].parts == (
        Reasoning("abcdef", tokens("abcdef")),
        Text("ok", tokens("ok")),
    )
    assert reply.usage.reasoning == 2


@pytest.mark.parametrize("wish", [ReasoningOptions(enabled=False), ReasoningOptions(effort="none")])
async def test_reasoning_disabled_omits_reasoning_part(wish: ReasoningOptions):
    reply = await ask(engine(Script.of(Think("hm"), Say("ok"))), chat(reasoning=wish))
    assert (reply.choices[0].join_reasoning(), reply.choices[0].join_text()) == ("", "ok")


async def test_custom_tool_call_is_marked_custom():
    request = GenerateRequest(
        "m", Conversation((user("hi"),), (CustomTool("patch"), FunctionTool("f")))
    )
    output = await events(engine(Script.of(CallTool("patch", "*** Begin"), CallTool("f"))), request)
    assert [event.custom for event in output if isinstance(event, ToolCallStart)] == [True, False]


async def test_normalizing_tokenizer_keeps_text_and_tokens():
    script = Script((ScriptEntry((Say("wörld 😀"),), chunks="characters"),))
    choice = (await ask(engine(script, tokenizer=Triples(prefix="_")))).choices[0]
    assert choice.join_text() == "wörld 😀"
    assert [token.id for token in choice.tokens] == Triples(prefix="_").encode(
        "wörld 😀", special=False
    )


@pytest.mark.parametrize("part", [Say(""), Think(""), Refuse("")])
async def test_empty_part_emits_no_event(part: Part):
    output = await events(engine(Script.of(part)))
    assert len(output) == 3
    assert get_answer_tokens(output[1]) == ()


def tokens(text: str) -> tuple[Token, ...]:
    vocabulary = Triples()
    return tuple(
        Token(id, vocabulary.decode([id])) for id in vocabulary.encode(text, special=False)
    )


@pytest.mark.parametrize("parts", [(Fail(),), (Say("abc"), Fail())])
def test_fail_part_is_last_event(parts: tuple[Part, ...]):
    request = chat(choices=2)
    steps = generate_events(
        request,
        ScriptEntry(parts),
        TokenizedPrompt("", ()),
        tokenizer=Triples(),
        new_id=lambda: "",
        max_model_len=None,
    )
    *before, last = steps
    assert isinstance(last, Fail)
    assert not any(isinstance(step, Fail | ChoiceFinished | Finished) for step in before)


def test_render_transcript_includes_all_parts():
    call = ToolCall("call_1", "f", '{"a": 1}')
    answer = ToolResult("call_1", (Text("42"), Image(RemoteMedia("http://localhost/x.png"))))
    conversation = Conversation(
        (
            Message(Role.USER, (Text("Look:"), Image(RemoteMedia("http://localhost/x.png")))),
            Message(Role.ASSISTANT, (Reasoning("Hm"), Text("So"), call, Refusal("No"))),
            Message(Role.TOOL, (answer,)),
        ),
        (
            FunctionTool("f", "Finds.", "{}"),
            CustomTool("c", None, "lark", "start: x"),
            FunctionTool("g"),
        ),
    )
    assert render_transcript(conversation) == (
        'tool: f Finds. {}\ntool: c start: x\ntool: g\nuser: Look:\nassistant: Hm So f {"a": 1} '
        "No\ntool: 42"
    )
