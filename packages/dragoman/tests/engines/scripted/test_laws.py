"""For every script and request the stream is legal, and no token is lost or invented."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event_grammar import check_events
from dragoman.core.events import Started
from dragoman.core.reply import ReplyBuilder
from dragoman.core.request import GenerationLimits, ReasoningOptions
from dragoman.core.tokenizer import Tokenizer
from dragoman.engines import tiny
from dragoman.engines.script.script import Chunks, Part
from dragoman.engines.scripted import CallTool, Refuse, Say, Script, ScriptEntry, Think, Wait
from dragoman.prompts.hf_tokenizer import load_tokenizer

from .harness import ask, chat, engine, events
from .triples import Triples

TEXTS = st.text("aé😀 \n<|im_end|>", max_size=12)
PIECES = TEXTS | st.lists(TEXTS, max_size=4).map(tuple)
PARTS = st.lists(
    st.one_of(
        st.builds(Say, PIECES),
        st.builds(Think, PIECES),
        st.builds(Refuse, PIECES),
        st.builds(CallTool, st.just("f"), PIECES),
        st.builds(Wait, st.floats(0, 1)),
    ),
    max_size=5,
).map(tuple)
CHUNKS: st.SearchStrategy[Chunks] = st.sampled_from(["tokens", "words", "characters", "whole"])
EMBEDDED = load_tokenizer(tiny.find_bundled_model())


@given(
    parts=PARTS,
    chunks=CHUNKS,
    choices=st.integers(1, 3),
    max_tokens=st.none() | st.integers(0, 30),
    budget=st.none() | st.integers(0, 5),
    tokenizer=st.sampled_from([Triples(), EMBEDDED]),
)
async def test_random_stream_is_valid_and_usage_matches_tokens(
    parts: tuple[Part, ...],
    chunks: Chunks,
    choices: int,
    max_tokens: int | None,
    budget: int | None,
    tokenizer: Tokenizer,
):
    request = chat(
        tools=["f"],
        choices=choices,
        limits=GenerationLimits(max_tokens),
        reasoning=ReasoningOptions(budget=budget),
    )
    playing = engine(Script((ScriptEntry(parts, chunks=chunks, pace=0.1),)), tokenizer=tokenizer)
    fold, stream = ReplyBuilder(), await events(playing, request)
    for event in check_events(stream):
        fold.feed(event)
    reply = fold.build()
    assert isinstance(stream[0], Started)
    assert reply.usage.completion == sum(len(choice.tokens) for choice in reply.choices)
    for choice in reply.choices:
        assert max_tokens is None or len(choice.tokens) <= max_tokens
        assert not any(token.special for token in choice.tokens)


@given(text=st.text("aé😀 \n<|im_end|></think>"), chunks=CHUNKS)
async def test_text_tokens_match_tokenizer_encoding(text: str, chunks: Chunks):
    playing = engine(Script((ScriptEntry((Say(text),), chunks=chunks),)), tokenizer=EMBEDDED)
    choice = (await ask(playing)).choices[0]
    assert choice.join_text() == text
    assert [token.id for token in choice.tokens] == EMBEDDED.encode(text, special=False)
    assert b"".join(token.utf8 for token in choice.tokens).decode() == text
