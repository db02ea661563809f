"""Requests to llama.cpp, and the translation of its chunks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.engines.harness import AllowedTokensMatcher

from dragoman.core.errors import EngineError
from dragoman.core.events import FinishReason
from dragoman.core.request import Sampling
from dragoman.core.token_engine import (
    Ended,
    PromptLogprobs,
    ReasoningBudget,
    Sampled,
    Scheduled,
    TokenOutput,
    TokenRequest,
)
from dragoman.engines.llamacpp.client import LlamaCppClient
from dragoman.engines.llamacpp.completion_state import CompletionState
from dragoman.engines.llamacpp.native_grammar import build_native_grammar, find_impossible_end
from dragoman.engines.llamacpp.token_text import TokenText
from dragoman.engines.llamacpp.wire import (
    CompletionBody,
    CompletionChunk,
    LlamaCppErrorBody,
    PromptProgress,
    ScoredToken,
    TopLogprob,
)

WORDS = [
    b"a",
    b"b",
    b"\xf0",
    b"\x9f",
    b"\x98",
    b"\x80",
    b"\xf0\x9f",
    b"\x98\x80",
    b"<end>",
    b"\x9f\x98",
]
END = 8


def answer(**fields: object) -> CompletionState:
    fields = {
        "id": "x",
        "prompt": (0, 1),
        "max_tokens": 9,
        "stop_token_ids": frozenset({END}),
        **fields,
    }
    request = TokenRequest(**fields)  # pyright: ignore[reportArgumentType]
    return CompletionState(request, TokenText(WORDS), frozenset({END}), seed=7, context=64)


def list_tokens(out: list[TokenOutput]) -> list[int]:
    return [output.token for output in out if isinstance(output, Sampled)]


def test_feed_first_prompt_progress_emits_scheduled() -> None:
    one = answer()
    one.build_body(0, cached=False)
    assert one.feed(CompletionChunk(prompt_progress=PromptProgress(cache=1))) == [Scheduled("x", 1)]
    assert one.feed(CompletionChunk(prompt_progress=PromptProgress(cache=1))) == []
    assert one.feed(CompletionChunk(content="a", tokens=(0,), tokens_predicted=1)) == [
        Sampled("x", 0)
    ]


@pytest.mark.parametrize(
    ("tokens", "reason", "stop"),
    [
        ((0, END), FinishReason.STOP, END),
        ((0, 1, 0, 1, 0, 1, 0, 1, 0, 1), FinishReason.LENGTH, None),
    ],
)
def test_feed_ends_at_stop_token_or_max_tokens(
    tokens: tuple[int, ...], reason: FinishReason, stop: int | None
) -> None:
    one = answer()
    one.build_body(0, cached=False)
    out = [
        output
        for n, token in enumerate(tokens)
        for output in one.feed(CompletionChunk("?", (token,), tokens_predicted=n + 1))
    ]
    assert one.is_finished
    assert out[-1] == Ended("x", reason, stop)


def test_feed_infers_held_tokens_from_bytes() -> None:
    one = answer()
    one.build_body(0, cached=False)
    assert list_tokens(one.feed(CompletionChunk("\U0001f600", (7,), tokens_predicted=2))) == [6, 7]
    assert not one.is_stale


def test_ambiguous_held_tokens_are_requested_separately() -> None:
    """f0 9f 98 may be (f0 9f, 98) or (f0, 9f 98)."""
    one = answer()
    one.build_body(0, cached=False)
    assert list_tokens(one.feed(CompletionChunk("a", (0,), tokens_predicted=1))) == [0]
    assert list_tokens(one.feed(CompletionChunk("\U0001f600", (5,), tokens_predicted=4))) == []
    assert one.is_stale
    again = one.build_body(0, cached=True)
    assert (again.prompt, again.n_predict, again.stream) == ((0, 1, 0), 3, False)
    assert list_tokens(one.feed(CompletionChunk("\U0001f600", (6, 4, 5), True, 3, "limit"))) == [
        6,
        4,
        5,
    ]
    rest = one.build_body(0, cached=True)
    assert (rest.n_predict, rest.stream, len({7, again.seed, rest.seed})) == (5, True, 3)


def test_tokens_cut_within_character_are_requested_separately() -> None:
    one = answer(max_tokens=2)
    one.build_body(0, cached=False)
    one.feed(CompletionChunk("a", (0,), tokens_predicted=1))
    assert one.feed(CompletionChunk("", (), True, 2, "limit")) == []
    assert (one.is_finished, one.is_stale, one.build_body(0, cached=True).n_predict) == (
        False,
        True,
        1,
    )


def test_token_rejected_by_grammar_is_replaced() -> None:
    one = answer(matcher=AllowedTokensMatcher([[0], [1, 4]]), grammar="start: AB")
    assert one.build_body(0, cached=False).grammar == build_native_grammar("start: AB", {END})
    assert list_tokens(one.feed(CompletionChunk("a", (0,), tokens_predicted=1))) == [0]
    assert one.feed(CompletionChunk("a", (0,), tokens_predicted=2)) == []
    masked = one.build_body(0, cached=True)
    assert (masked.n_predict, masked.stream, masked.grammar) == (1, False, "")
    assert [id for id, lift in masked.logit_bias if lift is not False and lift > 100] == [1, 4]
    assert one.feed(CompletionChunk("b", (1,), True, 1, "limit"))[-1] == Ended(
        "x", FinishReason.STOP
    )


def test_build_body_without_stop_tokens_masks_end_token() -> None:
    assert answer(stop_token_ids=frozenset[int]()).build_body(0, cached=False).logit_bias == (
        (END, False),
    )
    assert answer().build_body(0, cached=False).logit_bias == ()


def test_build_body_masks_end_token_until_min_tokens() -> None:
    one = answer(min_tokens=1)
    first = one.build_body(0, cached=False)
    assert (first.logit_bias, first.n_predict) == (((END, False),), 1)
    one.feed(CompletionChunk("a", (0,), tokens_predicted=1))
    one.feed(CompletionChunk("", (), True, 1, "limit"))
    assert not one.is_finished
    assert one.build_body(0, cached=True).logit_bias == ()


def test_bad_words_mask_only_their_last_token() -> None:
    one = answer(sampling=Sampling(bad_words=((0, 1), (3,))))
    assert one.build_body(0, cached=False).logit_bias == ((3, False),)
    assert list_tokens(one.feed(CompletionChunk("b", (1,), tokens_predicted=1))) == [1]
    assert list_tokens(one.feed(CompletionChunk("a", (0,), tokens_predicted=2))) == [0]
    assert list_tokens(one.feed(CompletionChunk("b", (1,), tokens_predicted=3))) == []
    assert (1, False) in one.build_body(0, cached=True).logit_bias


def test_logprob_outside_top_has_no_rank() -> None:
    one = answer(logprobs=1)
    assert one.build_body(0, cached=False).n_probs == 1
    best = (TopLogprob(1, -0.1),)
    scored = CompletionChunk(
        "a", (0,), tokens_predicted=1, completion_probabilities=(ScoredToken(0, -2.0, best),)
    )
    out = one.feed(scored)[-1]
    assert isinstance(out, Sampled)
    assert out.logprobs is not None
    assert (out.logprobs.logprob, out.logprobs.rank, out.logprobs.top) == (-2.0, None, ((1, -0.1),))


def test_penalties_exclude_prompt_until_output_repeats_it() -> None:
    one = answer(prompt=(0, 1, 1), sampling=Sampling(presence_penalty=0.5, frequency_penalty=0.25))
    body = one.build_body(0, cached=False)
    assert (body.presence_penalty, body.frequency_penalty) == (0.5, 0.25)
    assert dict(body.logit_bias) == {0: 0.75, 1: 1.0}
    assert list_tokens(one.feed(CompletionChunk("x", (3,), tokens_predicted=1))) == [3]
    assert not one.is_stale, "not in the prompt: llama.cpp's penalty is correct"
    assert list_tokens(one.feed(CompletionChunk("b", (1,), tokens_predicted=2))) == [1]
    assert one.is_stale
    again = one.build_body(0, cached=True)
    assert (again.prompt, dict(again.logit_bias)) == ((0, 1, 1, 3, 1), {0: 0.75, 1: 0.5})


def test_exhausted_reasoning_budget_forces_only_end_tokens() -> None:
    limit = ReasoningBudget(1, (), (2,), (2,), is_open=True)
    one = answer(reasoning_budget=limit, sampling=Sampling(temperature=1.0, presence_penalty=2.0))
    assert one.build_body(0, cached=False).n_predict == 9
    assert list_tokens(one.feed(CompletionChunk("b", (4,), tokens_predicted=1))) == [4]
    forced = one.build_body(0, cached=True)
    assert (forced.n_predict, forced.logit_bias, forced.presence_penalty) == (1, ((2, 200.0),), 0.0)
    assert list_tokens(one.feed(CompletionChunk("", (2,), True, 1, "limit"))) == [2]
    assert one.build_body(0, cached=True).n_predict == 7


def test_prompt_logprobs_are_computed_by_forced_generation() -> None:
    """The second token ends within a character, and the third ends the turn: llama.cpp
    stops there.
    """
    one = answer(prompt=(0, 1, 2, END, 0), prompt_logprobs=1)
    first = one.build_body(0, cached=False)
    assert (first.prompt, first.n_predict, first.stream) == ((0,), 3, False)
    assert first.grammar.endswith("start: <[1]> <[2]> <[8]>\n")
    best = (TopLogprob(5, -0.1),)
    scores = (ScoredToken(1, -2.0, best), ScoredToken(END, -3.0, best))
    assert one.feed(
        CompletionChunk("b", (1, 2, END), True, 3, "eos", completion_probabilities=scores)
    ) == [Scheduled("x", 0)]
    missing = one.build_body(0, cached=True)
    assert (missing.prompt, missing.n_probs, missing.logit_bias) == (
        (0, 1),
        len(WORDS),
        ((0, 200.0),),
    )
    full = (TopLogprob(0, -0.5), TopLogprob(2, -4.0))
    one.feed(
        CompletionChunk(
            "a", (0,), True, 1, "limit", completion_probabilities=(ScoredToken(0, -0.5, full),)
        )
    )
    last = one.build_body(0, cached=True)
    assert (last.prompt, last.n_predict) == ((0, 1, 2, END), 1)
    (output,) = one.feed(
        CompletionChunk("a", (0,), True, 1, completion_probabilities=(ScoredToken(0, -1.0, best),))
    )
    assert isinstance(output, PromptLogprobs)
    assert [score and score.logprob for score in output.logprobs] == [None, -2.0, -4.0, -3.0, -1.0]
    assert output.logprobs[2] is not None
    assert (output.logprobs[2].rank, output.logprobs[2].top) == (2, ((0, -0.5),))
    assert one.build_body(0, cached=True).prompt == (0, 1, 2, END, 0), "and then the answer"


def test_feed_error_chunk_raises_engine_error() -> None:
    with pytest.raises(EngineError, match=r"llama.cpp: too much"):
        answer().feed(CompletionChunk(error=LlamaCppErrorBody("too much")))


@pytest.mark.parametrize(
    ("grammar", "native"),
    [
        ('start: "x"', '%llguidance {}\nanswer_body: "x"\nstart: answer_body (<[3,8]>)?\n'),
        (
            "%llguidance {}\nstart: /a/",
            "%llguidance {}\nanswer_body: /a/\nstart: answer_body (<[3,8]>)?\n",
        ),
        (
            'start[max_tokens=9]: <start> a "start" /start/ # start\na: restart start? start-2 '
            "start_a\nrestart: start",
            '%llguidance {}\nanswer_body[max_tokens=9]: <start> a "start" /start/ # start\n'
            "a: restart answer_body? start-2 start_a\nrestart: answer_body\nstart: answer_body "
            "(<[3,8]>)?\n",
        ),
        (
            'start: a{1,2} %json {"start": {"a": 1}} answer_body\na: %lark { start: /b/ '
            '}\nanswer_body: "y"',
            '%llguidance {}\nanswer_body_: a{1,2} %json {"start": {"a": 1}} answer_body\na: %lark '
            "{ start: /b/ }\n"
            'answer_body: "y"\nstart: answer_body_ (<[3,8]>)?\n',
        ),
        ('{"grammars": []}', ""),
        ("", ""),
    ],
)
def test_build_native_grammar_allows_every_end_token(grammar: str, native: str) -> None:
    assert build_native_grammar(grammar, {8, 3}) == native


def test_build_body_sends_native_grammar_once_if_supported() -> None:
    one = answer(grammar='start: "a"')
    assert [bool(one.build_body(0, cached=False).grammar) for _ in range(2)] == [True, False]
    ours = answer(grammar='start: "a"')
    ours.native_grammar = ""
    assert ours.build_body(0, cached=False).grammar == ""


@pytest.mark.parametrize(
    ("sampled", "impossible"), [({3: (3,), 8: (8,)}, None), ({3: (3,), 8: (3,)}, 8), ({3: ()}, 3)]
)
async def test_find_impossible_end_tries_every_end_token(
    sampled: dict[int, tuple[int, ...]], impossible: int | None
) -> None:
    async def complete(body: CompletionBody) -> tuple[int, ...]:
        assert body.id_slot == 2
        return sampled[body.logit_bias[0][0]]

    assert await find_impossible_end({8, 3}, 2, complete) == impossible


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_client_non_json_response_raises_engine_error(tmp_path: Path, status: str) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-length: 3\r\nconnection: close\r\n\r\n<p>".encode()
        )
        writer.close()

    path = str(tmp_path / "s")
    client = LlamaCppClient(path, "key")
    async with await asyncio.start_unix_server(handle, path):
        for call in (client.embed([(1,)]), client.tokenize("a")):
            with pytest.raises(EngineError, match="unexpected message"):
                await call
    await client.close()
