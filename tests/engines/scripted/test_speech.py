"""What a reply looks like as events, and where the request's limits end it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import ContextTooLong, RequestError
from dragoman.core.events import (
    FinishReason,
    PromptTokens,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    sampled,
)
from dragoman.core.message import CustomTool, FunctionTool, Reasoning, Text
from dragoman.core.request import Conversation, GenerateRequest, JsonObject, Limits, ReasoningOptions
from dragoman.engines.scripted import Call, Counts, Entry, Refuse, Say, Script, Think, Wait
from dragoman.engines.scripted.script import Chunks, Part

from .asking import Naps, ask, chat, engine, events, user
from .triples import Triples

EVERYTHING = (Think("Let me see."), Say("Hé, 😀!"), Call("f", '{"x": "ü"}'), Refuse("No."))


async def test_every_part_is_said_in_order():
    reply = await ask(engine(Script.of(*EVERYTHING)), chat(tools=["f"]))
    choice = reply.choices[0]
    assert [type(part).__name__ for part in choice.parts] == ["Reasoning", "Text", "ToolCall", "Refusal"]
    assert (choice.reasoning(), choice.text(), choice.refusal()) == ("Let me see.", "Hé, 😀!", "No.")
    assert [(call.id, call.name, call.arguments) for call in choice.calls()] == [("call_1", "f", '{"x": "ü"}')]


async def test_usage_counts_the_tokens_that_ride_on_the_events():
    reply = await ask(engine(Script.of(*EVERYTHING)), chat(tools=["f"]))
    assert reply.usage.completion == len(reply.choices[0].tokens)
    assert reply.usage.reasoning == len(Triples().encode("Let me see.", special=False))


async def test_started_counts_the_words_of_the_prompt_and_nothing_is_cached():
    text = "user: 123456"
    first = (await events(engine(Script.of(Say("x"))), chat(user("123456"))))[0]
    assert first == Started(len(text) // 3, 0)


async def test_a_script_may_report_other_counts():
    script = Script((Entry((Say("x"),), usage=Counts(prompt=10, cached=8, completion=3, reasoning=1)),))
    assert (await ask(engine(script))).usage == Usage(10, 3, 8, 1)


@pytest.mark.parametrize(
    ("chunks", "texts"),
    [
        ("words", ["one", " two", "\nthree"]),
        ("characters", list("one two\nthree")),
        ("whole", ["one two\nthree"]),
        ("tokens", ["one", " tw", "o\nt", "hre", "e"]),
    ],
)
async def test_text_is_cut_as_the_script_says(chunks: Chunks, texts: list[str]):
    script = Script((Entry((Say("one two\nthree"),), chunks=chunks),))
    said = [event.text for event in await events(engine(script)) if isinstance(event, TextDelta)]
    assert said == texts


async def test_a_text_in_pieces_is_cut_exactly_so():
    said = await events(engine(Script.of(Say(("a", "", "bcd", "é")), Call("f", ("{", "}")))), chat(tools=["f"]))
    assert [event.text for event in said if isinstance(event, TextDelta)] == ["a", "bcd", "é"]
    assert [event.arguments for event in said if isinstance(event, ToolCallDelta)] == ["{", "}"]


@given(text=st.text(max_size=30), limit=st.integers(0, 40), chunks=st.sampled_from(["tokens", "words", "characters"]))
async def test_a_limit_cuts_the_tokens_and_loses_none(text: str, limit: int, chunks: Chunks):
    script = Script((Entry((Say(text), Call("tool", text)), chunks=chunks),))
    choice = (await ask(engine(script), chat(tools=["tool"], limits=Limits(limit)))).choices[0]
    whole = [id for piece in (text, "tool", text) for id in Triples().encode(piece, special=False)]
    assert [token.id for token in choice.tokens] == whole[:limit]
    assert choice.reason is (FinishReason.LENGTH if limit < len(whole) else FinishReason.STOP)
    assert text.startswith(choice.text())


@given(text=st.text("ab ", max_size=20), stops=st.lists(st.text("ab ", min_size=1, max_size=3), min_size=1, max_size=3))
async def test_a_stop_string_ends_the_text_however_it_is_cut(text: str, stops: list[str]):
    found = min(((text.find(s) + len(s), text.find(s), s) for s in stops if s in text), default=None)
    for chunks in ("tokens", "characters", "whole"):
        script = Script((Entry((Say(text), Say("!")), chunks=chunks),))
        choice = (await ask(engine(script), chat(limits=Limits(stop=tuple(stops))))).choices[0]
        assert (choice.text(), choice.stop) == ((text + "!", None) if found is None else (text[: found[1]], found[2]))


async def test_a_stop_string_stays_if_wanted_and_keeps_its_tokens():
    limits = Limits(stop=("cd",), include_stop=True)
    choice = (await ask(engine(Script.of(Say("abcdefgh"))), chat(limits=limits))).choices[0]
    assert (choice.text(), len(choice.tokens)) == ("abcd", 2)


async def test_a_stop_string_that_the_limit_cuts_off_is_no_stop():
    limits = Limits(max_tokens=1, stop=("cd",))
    choice = (await ask(engine(Script.of(Say("abcdef"))), chat(limits=limits))).choices[0]
    assert (choice.text(), choice.reason, choice.stop) == ("abc", FinishReason.LENGTH, None)


async def test_neither_json_nor_reasoning_nor_arguments_are_searched_for_stops():
    limits = Limits(stop=("}",))
    script = Script.of(Think("}"), Call("f", "{}"), Say("ok"))
    assert (await ask(engine(script), chat(tools=["f"], limits=limits))).choices[0].text() == "ok"
    request = chat(limits=limits, constraint=JsonObject())
    assert (await ask(engine(Script.of(Say('{"a": {}}'))), request)).choices[0].text() == '{"a": {}}'


async def test_logprobs_say_that_it_was_certain():
    plain = (await ask(engine(Script.of(Say("abc"))))).choices[0].tokens[0]
    alone = (await ask(engine(Script.of(Say("abc"))), chat(logprobs=0))).choices[0].tokens[0]
    ranked = (await ask(engine(Script.of(Say("abc"))), chat(logprobs=5))).choices[0].tokens[0]
    assert (plain.logprob, plain.rank) == (None, None)
    assert (alone.logprob, alone.rank, alone.top) == (0.0, 1, ())
    assert [(top.text, top.logprob) for top in ranked.top] == [("abc", 0.0)]


async def test_a_token_that_is_no_whole_character_has_its_bytes():
    tokens = (await ask(engine(Script.of(Say("ab😀"))))).choices[0].tokens
    assert [token.utf8 for token in tokens] == [b"ab\xf0", b"\x9f\x98\x80"]


async def test_text_that_reads_like_a_control_token_is_text():
    tokens = (await ask(engine(Script.of(Say("<|end|>"))))).choices[0].tokens
    assert 1 not in [token.id for token in tokens]
    assert not any(token.special for token in tokens)


async def test_all_choices_are_said_at_once():
    script = Script((Entry((Say("one"),), more=((Say("uno"),),), repeat=True),))
    said = await events(engine(script), chat(choices=3))
    assert [event.choice for event in said if isinstance(event, TextDelta)] == [0, 1, 2]
    reply = await ask(engine(script), chat(choices=3))
    assert [choice.text() for choice in reply.choices] == ["one", "uno", "one"]
    assert reply.usage.completion == 3


async def test_choices_wait_together():
    naps = Naps()
    script = Script((Entry((Say("abcdef"), Wait(2.0), Say("g")), delay=1.0, pace=0.5),))
    await ask(engine(script, sleep=naps), chat(choices=2))
    assert naps.slept == [1.0, 0.5, 0.5, 2.0, 0.5]


async def test_an_answer_fills_what_the_context_has_left():
    script = Script.of(Say("abcdefghi"))
    choice = (await ask(engine(script, max_model_len=4), chat(user("")))).choices[0]
    assert (choice.text(), choice.reason) == ("abcdef", FinishReason.LENGTH)


@pytest.mark.parametrize("text", ["123456789", "1" * 100_000])
async def test_a_prompt_that_leaves_no_room_is_refused(text: str):
    with pytest.raises(ContextTooLong) as refused:
        await ask(engine(Script.of(Say("x")), max_model_len=5), chat(user(text)))
    assert refused.value.limit == 5


async def test_a_plain_prompt_is_counted_as_a_tokenizer_would():
    request = GenerateRequest("m", "<|end|>abc", return_prompt=True)
    started, prompt, *_ = await events(engine(Script.of(Say("x"))), request)
    assert started == Started(3, 0)
    assert isinstance(prompt, PromptTokens)
    assert [token.id for token in prompt.tokens][:2] == [0, 1]


async def test_ids_come_back_as_they_are():
    ids = tuple(Triples().encode("<|end|>", special=False))
    _, prompt, *_ = await events(engine(Script.of(Say("x"))), GenerateRequest("m", ids, return_prompt=True))
    assert isinstance(prompt, PromptTokens)
    assert tuple(token.id for token in prompt.tokens) == ids


@pytest.mark.parametrize("id", [-1, 10**9])
async def test_an_id_outside_the_vocabulary_is_refused(id: int):
    with pytest.raises(RequestError, match="no token"):
        await ask(engine(Script.of(Say("x"))), GenerateRequest("m", (id,)))


async def test_a_reasoning_budget_ends_the_thought_and_not_the_answer():
    request = chat(reasoning=ReasoningOptions(budget=2))
    reply = await ask(engine(Script.of(Think("abcdefghi"), Say("ok"))), request)
    assert reply.choices[0].parts == (Reasoning("abcdef", tokens("abcdef")), Text("ok", tokens("ok")))
    assert reply.usage.reasoning == 2


@pytest.mark.parametrize("wish", [ReasoningOptions(enabled=False), ReasoningOptions(effort="none")])
async def test_who_wants_no_thoughts_gets_none(wish: ReasoningOptions):
    reply = await ask(engine(Script.of(Think("hm"), Say("ok"))), chat(reasoning=wish))
    assert (reply.choices[0].reasoning(), reply.choices[0].text()) == ("", "ok")


async def test_a_custom_tool_gets_its_input_as_it_is():
    request = GenerateRequest("m", Conversation((user("hi"),), (CustomTool("patch"), FunctionTool("f"))))
    said = await events(engine(Script.of(Call("patch", "*** Begin"), Call("f"))), request)
    assert [event.custom for event in said if isinstance(event, ToolCallStart)] == [True, False]


async def test_a_tokenizer_that_normalises_loses_neither_text_nor_tokens():
    script = Script((Entry((Say("wörld 😀"),), chunks="characters"),))
    choice = (await ask(engine(script, tokenizer=Triples(prefix="_")))).choices[0]
    assert choice.text() == "wörld 😀"
    assert [token.id for token in choice.tokens] == Triples(prefix="_").encode("wörld 😀", special=False)


@pytest.mark.parametrize("part", [Say(""), Think(""), Refuse("")])
async def test_an_empty_part_says_nothing(part: Part):
    said = await events(engine(Script.of(part)))
    assert len(said) == 3
    assert sampled(said[1]) == ()


def tokens(text: str) -> tuple[Token, ...]:
    vocabulary = Triples()
    return tuple(Token(id, vocabulary.decode([id])) for id in vocabulary.encode(text, special=False))
