"""Real models in llama.cpp, compared with the same models in numpy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.engines.harness import GREEDY, AllowedTokensMatcher, EngineClient, Outputs, run_alone

from dragoman.constraints.grammar_compiler import Compiler
from dragoman.core.errors import EngineError, Overloaded, Unsupported
from dragoman.core.events import FinishReason
from dragoman.core.message import FunctionTool, ToolChoice
from dragoman.core.request import GenerateRequest, GenerationLimits, Sampling, SamplingOptions
from dragoman.core.token_engine import Ended, Failed, ReasoningBudget, TokenRequest
from dragoman.engines import tiny
from dragoman.engines.batching import EngineLimits
from dragoman.engines.llamacpp import (
    LlamaCppOptions,
    find_parts,
    load,
    read_metadata,
    server_lifecycle,
)
from dragoman.engines.llamacpp.client import ChunkReceiver, LlamaCppClient, tokenize
from dragoman.engines.llamacpp.engine import LlamaCppEngine
from dragoman.engines.llamacpp.load import check_tokenizer
from dragoman.engines.llamacpp.process import LlamaCppProcess
from dragoman.engines.llamacpp.wire import CompletionBody
from dragoman.engines.llamacpp_child import LaunchSettings
from dragoman.engines.tiny.llama import Llama, read_model
from dragoman.launch import build_models
from dragoman.launch.engines.llamacpp.build import build_gguf_tokenizer
from dragoman.prompts.hf_tokenizer import load_tokenizer
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.testing import EngineUnderTest
from dragoman.testing.engine_under_test import build_conversation

pytest.importorskip("xllamacpp", reason="needs xllamacpp")
pytest.importorskip("gguf", reason="needs gguf")

from tests.engines.llamacpp.files import (
    USER_DEFINED,
    add_sentencepiece,
    write_embedded,
    write_llama,
)

pytestmark = pytest.mark.llamacpp

NEAR = 0.01
"""If numpy's best two logprobs are closer than this, they count as a tie. llama.cpp's
are within a tenth of it.
"""

TOKENIZER = load_tokenizer(tiny.find_bundled_model())


@pytest.fixture(scope="module")
def bundled_model() -> Llama:
    return read_model(tiny.find_bundled_model())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedded(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


class Client(EngineClient):
    def __init__(self, engine: LlamaCppEngine) -> None:
        super().__init__(engine)
        self.engine = engine


@asynccontextmanager
async def serving(
    file: Path,
    *,
    clock: Callable[[], float] = time.monotonic,
    deterministic: bool = True,
    **limits: int | bool,
) -> AsyncGenerator[Client]:
    options = {"max_model_len": 1024, "max_num_seqs": 32, **limits}
    sizes = EngineLimits(**options)  # pyright: ignore[reportArgumentType]
    metadata = read_metadata(file)
    engine = load(
        metadata,
        build_gguf_tokenizer(metadata),
        sizes,
        LlamaCppOptions("float32", threads=1, deterministic=deterministic),
        clock,
    ).engine
    await engine.start()
    try:
        yield Client(engine)
    finally:
        await engine.stop()


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text, special=True))


def encode_chat(text: str) -> tuple[int, ...]:
    return ids(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")


def prompts() -> list[tuple[int, ...]]:
    """Common and unusual texts."""
    rng = np.random.default_rng(5)
    texts = [
        encode_chat(f"{verb} {thing}.")
        for verb in ("Tell me", "What is", "Count", "Repeat")
        for thing in ("a story", "3 + 4", "to 9")
    ]
    return texts + [
        tuple(rng.integers(9, len(TOKENIZER.special_tokens) + 1900, n).tolist())
        for n in (1, 2, 17, 64, 300)
    ]


async def test_greedy_tokens_match_numpy(bundled_model: Llama, file: Path) -> None:
    asks = [
        TokenRequest(
            id=str(n),
            prompt=prompt,
            max_tokens=40,
            sampling=GREEDY,
            logprobs=2,
            stop_token_ids=frozenset({2}),
        )
        for n, prompt in enumerate(prompts())
    ]
    async with serving(file) as client:
        streams = [client.send(ask) for ask in asks]
        await client.ends(*streams)
    compared = sum(
        agree(run_alone(bundled_model, ask), theirs)
        for ask, theirs in zip(asks, streams, strict=True)
    )
    assert compared > 300


def agree(ours: Outputs, theirs: Outputs) -> int:
    """Compare the outputs up to the first token at which numpy's probabilities tie;
    return the number of tokens.
    """
    for place, (mine, other) in enumerate(zip(ours.scores, theirs.scores, strict=False)):
        assert mine is not None
        assert other is not None
        if mine.top[0][1] - mine.top[1][1] < NEAR:
            return place
        assert theirs.tokens[place] == ours.tokens[place]
        assert other.logprob == pytest.approx(mine.logprob, abs=NEAR / 10)
        assert other.rank == 1
    assert theirs.end == ours.end
    return len(ours.tokens)


async def test_repetition_penalty_matches_numpy(bundled_model: Llama, file: Path) -> None:
    sampling = Sampling(temperature=0, repetition_penalty=1.3)
    ask = TokenRequest(
        id="a",
        prompt=encode_chat("Once upon a time. Tell me a story."),
        max_tokens=24,
        sampling=sampling,
    )
    async with serving(file) as client:
        assert (await client.ask(ask)).tokens == run_alone(bundled_model, ask).tokens


@pytest.mark.parametrize(
    ("presence", "frequency"),
    [(1.5, 0.0), (0.0, 0.7), (-1.0, 0.4), (2.0, -0.2)],
    ids=["presence", "frequency", "", ""],
)
async def test_presence_and_frequency_penalty_ignore_prompt(
    bundled_model: Llama, file: Path, presence: float, frequency: float
) -> None:
    """llama.cpp counts the prompt too; this prompt contains the words of the answer."""
    sampling = Sampling(temperature=0, presence_penalty=presence, frequency_penalty=frequency)
    prompt = encode_chat("Once upon a time there was a dog. Tell me a story about the dog.")
    ask = TokenRequest(
        id="a", prompt=prompt, max_tokens=80, sampling=sampling, stop_token_ids=frozenset({2})
    )
    plain = msgspec.structs.replace(ask, sampling=GREEDY)
    async with serving(file) as client:
        outputs = await client.ask(ask)
    assert (outputs.tokens, outputs.end) == (
        run_alone(bundled_model, ask).tokens,
        run_alone(bundled_model, ask).end,
    )
    assert outputs.tokens != run_alone(bundled_model, plain).tokens
    assert set(outputs.tokens) & set(prompt)


async def test_unsupported_penalty_combination_is_rejected(file: Path) -> None:
    sampling = Sampling(repetition_penalty=1.2, presence_penalty=1.0)
    ask = TokenRequest(id="a", prompt=encode_chat("Hi"), max_tokens=2, sampling=sampling)
    async with serving(file) as client:
        with pytest.raises(Unsupported, match="repetition_penalty together with presence_penalty"):
            client.engine.add(ask, lambda _: None)


@pytest.mark.parametrize("alternatives", [0, 3])
async def test_prompt_logprobs_match_numpy(
    bundled_model: Llama, file: Path, alternatives: int
) -> None:
    """The prompts have end-of-turn tokens, and characters of several tokens: llama.cpp
    reports only their last ones.
    """
    prompts = [
        encode_chat("Hi 😀 there 👍🏽京") + ids("Hello"),
        encode_chat("Tell me a story. ") * 30,
        ids("a")[:1],
    ]
    async with serving(file) as client:
        for prompt in prompts:
            ask = TokenRequest(
                id="a", prompt=prompt, max_tokens=4, sampling=GREEDY, prompt_logprobs=alternatives,
                stop_token_ids=frozenset({2}),
            )  # fmt: skip
            ours, theirs = run_alone(bundled_model, ask), await client.ask(ask)
            assert (theirs.tokens, theirs.cached) == (ours.tokens, [0])
            (known,) = ours.prompt
            (found,) = theirs.prompt
            assert len(found.logprobs) == len(prompt)
            assert found.logprobs[0] is None
            for mine, other in zip(known.logprobs[1:], found.logprobs[1:], strict=True):
                assert mine is not None
                assert other is not None
                assert other.logprob == pytest.approx(mine.logprob, abs=NEAR)
                assert mine.rank is not None
                assert other.rank is None or abs(other.rank - mine.rank) <= 1 + mine.rank // 100
                assert [score for _, score in other.top] == pytest.approx(
                    [s for _, s in mine.top], abs=NEAR
                )


@pytest.mark.parametrize("budget", [0, 5])
async def test_exhausted_reasoning_budget_forces_end(
    bundled_model: Llama, file: Path, budget: int
) -> None:
    end = ids("</think>")
    limit = ReasoningBudget(budget, (), end, (*ids("Stop."), *end), is_open=True)
    ask = TokenRequest(
        id="a", prompt=encode_chat("Tell me a story."), max_tokens=30, sampling=GREEDY,
        reasoning_budget=limit, logprobs=2,
        stop_token_ids=frozenset({2}),
    )  # fmt: skip
    async with serving(file) as client:
        outputs = await client.ask(ask)
    known = run_alone(bundled_model, ask)
    assert tuple(outputs.tokens[budget : budget + len(limit.forced_ids)]) == limit.forced_ids
    assert outputs.tokens == known.tokens
    assert [score and round(score.logprob, 1) for score in outputs.scores][budget] is not None


async def test_flash_attention_keeps_greedy_tokens(bundled_model: Llama, file: Path) -> None:
    asks = [
        TokenRequest(
            id=str(n), prompt=prompt, max_tokens=20, sampling=GREEDY, stop_token_ids=frozenset({2})
        )
        for n, prompt in enumerate(prompts()[:6])
    ]
    async with serving(file, deterministic=False) as client:
        streams = [client.send(ask) for ask in asks]
        await client.ends(*streams)
    assert [one.tokens for one in streams] == [run_alone(bundled_model, ask).tokens for ask in asks]


class SequenceMatcher:
    """A matcher that allows exactly one sequence of tokens."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._left = list(tokens)

    def mask(self) -> bytes:
        return (1 << self._left[0]).to_bytes(256, "little")

    def allows(self, token: int) -> bool:
        return self._left[:1] == [token]

    def replace(self, token: int) -> int:
        return token

    def advance(self, token: int) -> bool:
        return self._left.pop(0) == token

    @property
    def finished(self) -> bool:
        return not self._left

    @property
    def was_closed(self) -> bool:
        return False


async def test_failing_matcher_fails_only_its_request(file: Path) -> None:
    ask = TokenRequest(
        id="a",
        prompt=encode_chat("Hi"),
        max_tokens=5,
        matcher=AllowedTokensMatcher([[300]], fail_at=0),
    )
    async with serving(file) as client:
        broken = client.send(ask)
        fine = client.send(msgspec.structs.replace(ask, id="b", matcher=None))
        await client.ends(broken, fine)
        assert isinstance(broken.end, Failed)
        assert len(fine.tokens) == 5


def test_load_kv_cache_smaller_than_context_raises(file: Path) -> None:
    metadata = read_metadata(file)
    with pytest.raises(EngineError, match="KV cache"):
        load(
            metadata,
            build_gguf_tokenizer(metadata),
            EngineLimits(max_model_len=512, num_kv_tokens=256),
        )


async def test_tokens_of_partial_characters_are_reported(file: Path) -> None:
    """llama.cpp's stream does not name them."""
    spelled = ids("a😀b👍🏽京")
    assert len(spelled) > 12
    async with serving(file) as client:
        bound = TokenRequest(
            id="a", prompt=encode_chat("Hi"), max_tokens=40, matcher=SequenceMatcher(spelled)
        )
        assert tuple((await client.ask(bound)).tokens) == spelled
        for most in range(1, len(spelled)):
            cut = msgspec.structs.replace(bound, max_tokens=most, matcher=SequenceMatcher(spelled))
            assert tuple((await client.ask(cut)).tokens) == spelled[:most]


async def test_invalid_utf8_output_reports_all_tokens(file: Path) -> None:
    """A temperature at which much of the output is not UTF-8: unknown tokens are
    requested again.
    """
    hot = Sampling(temperature=1e6, seed=5)
    ask = TokenRequest(id="a", prompt=encode_chat("Hi"), max_tokens=300, sampling=hot)
    async with serving(file) as client:
        outputs = await client.ask(ask)
        assert len(outputs.tokens) == 300
        assert any(
            len(TOKENIZER.token_bytes(id).decode(errors="ignore")) == 0 for id in outputs.tokens
        )


async def test_sampling_respects_min_allowed_tokens_and_bad_words(file: Path) -> None:
    story = encode_chat("Tell me a story.")
    end = frozenset({2})
    plain = TokenRequest(id="a", prompt=story, max_tokens=100, sampling=GREEDY, stop_token_ids=end)
    async with serving(file) as client:
        first = (await client.ask(plain)).tokens
        assert first[-1] == 2
        longer = await client.ask(msgspec.structs.replace(plain, min_tokens=len(first) + 20))
        assert len(longer.tokens) >= len(first) + 20
        assert 2 not in longer.tokens[: len(first) + 20]
        few = Sampling(temperature=1, allowed_token_ids=(300, 301, 302))
        assert set(
            (await client.ask(msgspec.structs.replace(plain, sampling=few, max_tokens=30))).tokens
        ) <= {
            300,
            301,
            302,
        }
        word = tuple(first[2:5])
        without = Sampling(temperature=0, bad_words=(word,))
        tokens = (await client.ask(msgspec.structs.replace(plain, sampling=without))).tokens
        assert tokens[:4] == first[:4]
        assert tokens[4] != first[4]
        assert not any(tuple(tokens[n : n + 3]) == word for n in range(len(tokens)))


async def test_preempted_sequences_keep_their_tokens(file: Path) -> None:
    asks = [
        TokenRequest(
            id=str(n), prompt=encode_chat(f"Count to {n}."), max_tokens=100, sampling=GREEDY
        )
        for n in range(8)
    ]
    async with serving(file, max_model_len=200, num_kv_tokens=260) as client:
        together = [client.send(ask) for ask in asks]
        await client.ends(*together)
        for ask, outputs in zip(asks, together, strict=True):
            assert len(outputs.tokens) == 100
            assert outputs.tokens == (await client.ask(ask)).tokens


async def test_sequence_aborted_at_start_releases_its_slot(file: Path) -> None:
    ask = TokenRequest(
        id="a", prompt=encode_chat("Tell me a story."), max_tokens=4, sampling=GREEDY
    )
    async with serving(file, max_num_seqs=2) as client:
        for number in range(3):
            client.send(msgspec.structs.replace(ask, id=f"gone-{number}", cache_salt="theirs"))
            client.engine.abort(f"gone-{number}")
        assert len((await client.ask(ask)).tokens) == 4
        async with asyncio.timeout(60):
            while client.engine.health().running:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
        assert client.engine.count_cached_tokens(ask.prompt, "theirs") == 0, (
            "nothing was computed for them"
        )


async def test_prefix_cache_hits_only_for_same_salt(file: Path) -> None:
    ask = TokenRequest(
        id="a",
        prompt=encode_chat("Tell me a story."),
        max_tokens=4,
        sampling=GREEDY,
        cache_salt="mine",
    )
    async with serving(file) as client:
        first, second = await client.ask(ask), await client.ask(ask)
        foreign = await client.ask(msgspec.structs.replace(ask, cache_salt="yours"))
        assert (first.cached, second.cached, foreign.cached) == ([0], [len(ask.prompt) - 1], [0])
        engine = client.engine
        assert engine.count_cached_tokens(ask.prompt, "mine") == len(ask.prompt) - 1
        assert await engine.reset_prefix_cache()
        assert (await client.ask(ask)).cached == [0]


async def test_killed_process_fails_sequences_and_restarts(file: Path) -> None:
    ask = TokenRequest(
        id="a", prompt=encode_chat("Tell me a story."), max_tokens=900, sampling=GREEDY
    )
    async with serving(file) as client:
        engine = client.engine
        outputs = client.send(ask)
        await client.until(outputs, tokens=3)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await client.ends(outputs)
        assert isinstance(outputs.end, Failed)
        while not engine.health().failed:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        await engine.stop()
        await engine.start()
        assert engine.health().ready
        assert len((await client.ask(msgspec.structs.replace(ask, max_tokens=5))).tokens) == 5


async def test_model_of_nan_fails_engine_and_restarts(tmp_path: Path) -> None:
    file = tmp_path / "nan.gguf"
    write_llama(file, tiny.find_bundled_model(), nan_tokens=range(2, 2048))
    asks = [
        TokenRequest(id=str(n), prompt=(1, 300 + n), max_tokens=4, sampling=Sampling(seed=n))
        for n in range(6)
    ]
    async with serving(file) as client:
        streams = [client.send(ask) for ask in asks]
        await client.ends(*streams)
        message = "The model returned invalid probabilities."
        assert [one.end for one in streams] == [Failed(ask.id, message) for ask in asks]
        health = client.engine.health()
        assert (health.ready, health.failed, health.reason) == (False, True, message)
        with pytest.raises(Overloaded, match="is being restarted"):
            client.send(asks[0])
        await client.engine.stop()
        await client.engine.start()
        assert client.engine.health().ready
        assert isinstance((await client.ask(asks[0])).end, Failed)


def test_load_broken_file_raises_one_line_error(file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(file.read_bytes()[:-200_000])
    metadata = read_metadata(broken)
    with pytest.raises(
        EngineError, match=r"llama.cpp cannot load .*broken.gguf: .*(within|bounds|corrupted|size)"
    ) as error:
        load(metadata, build_gguf_tokenizer(metadata), EngineLimits())
    assert "\n" not in error.value.message


async def test_split_model_matches_single_file(file: Path, tmp_path: Path) -> None:
    ask = TokenRequest(
        id="a", prompt=encode_chat("Tell me a story."), max_tokens=8, sampling=GREEDY
    )
    first = write_embedded(tmp_path / "tiny.gguf", split=20)
    assert len(find_parts(first)) > 1
    async with serving(first) as several, serving(file) as one:
        assert (await several.ask(ask)).tokens == (await one.ask(ask)).tokens


async def test_hanging_process_is_reported_unhealthy(file: Path) -> None:
    now = [0.0]
    ask = TokenRequest(
        id="a", prompt=encode_chat("Tell me a story."), max_tokens=900, sampling=GREEDY
    )
    async with serving(file, clock=lambda: now[0]) as client:
        outputs = client.send(ask)
        await client.until(outputs, tokens=3)
        assert client.engine.pid is not None
        os.kill(client.engine.pid, signal.SIGSTOP)
        now[0] += 61
        assert (client.engine.health().ready, client.engine.health().failed) == (False, False)
        assert "no message from llama.cpp for 61 s" in (client.engine.health().reason or "")
        now[0] += 240
        assert client.engine.health().failed
    assert isinstance(outputs.end, Failed)


def test_check_tokenizer_mismatch_raises() -> None:
    check_tokenizer(TOKENIZER, lambda text: TOKENIZER.encode(text, special=False), "here")
    with pytest.raises(EngineError, match="differently from its vocabulary"):
        check_tokenizer(TOKENIZER, lambda text: [*TOKENIZER.encode(text, special=False), 5], "here")


async def test_aborted_sequence_frees_slot_immediately(file: Path) -> None:
    ask = TokenRequest(id="a", prompt=encode_chat("Hi"), max_tokens=900, sampling=GREEDY)
    async with serving(file, max_num_seqs=1) as client:
        running = client.send(ask)
        waiting = client.send(msgspec.structs.replace(ask, id="b", max_tokens=3))
        await client.until(running, tokens=2)
        client.engine.abort("a")
        await client.ends(waiting)
        assert len(waiting.tokens) == 3
        assert len(running.tokens) < 600
        await asyncio.sleep(0)
        assert client.engine.health().running == 0


async def test_tool_calls_with_user_defined_markers_are_parsed(tmp_path: Path) -> None:
    """Many files declare the delimiters as user-defined tokens: llama.cpp's own grammar
    then treats them as text.
    """
    file = write_embedded(tmp_path / "marks.gguf", marks=USER_DEFINED)
    models = build_models(
        Settings(model=str(file), max_model_len=2048, max_num_seqs=4, threads=1), SystemClock()
    )
    await models.start()
    subject = EngineUnderTest(next(iter(models)))
    tool = FunctionTool(
        "get_weather",
        None,
        '{"type": "object", "properties": {"city": {"enum": ["Rome"]}}}',
        strict=True,
    )
    prompt = msgspec.structs.replace(
        build_conversation("What is the weather in Rome?"), tools=(tool,)
    )
    required = msgspec.structs.replace(
        prompt, tool_choice=ToolChoice("required"), parallel_tool_calls=False
    )
    for seed in range(3):
        hot = SamplingOptions(temperature=2.0, seed=seed)
        request = GenerateRequest(
            subject.model.name, required, sampling=hot, limits=GenerationLimits(max_tokens=100)
        )
        (call,) = (await subject.complete(request)).choices[0].list_calls()
        assert call.name == "get_weather"
        assert json.loads(call.arguments) in ({}, {"city": "Rome"})
    free = GenerateRequest(
        subject.model.name,
        prompt,
        sampling=SamplingOptions(temperature=0.0),
        limits=GenerationLimits(max_tokens=100),
    )
    assert {call.name for call in (await subject.complete(free)).choices[0].list_calls()} == {
        "get_weather"
    }
    await models.stop()


END_TEXTS = (0, 2)
"""<|endoftext|> and <|im_end|>. The file declares the second; llama.cpp uses the first
as its end-of-turn token.
"""


@pytest.mark.parametrize("end", END_TEXTS)
async def test_grammar_output_ends_at_every_end_token(file: Path, end: int) -> None:
    grammar = Compiler(TOKENIZER, END_TEXTS).compile_text('start: "x"?', None)
    ask = TokenRequest(
        id="a",
        prompt=encode_chat("Hi"),
        max_tokens=5,
        sampling=Sampling(temperature=0, logit_bias=((end, 100.0),)),
        stop_token_ids=frozenset(END_TEXTS),
        grammar=grammar.text,
        matcher=grammar.build_matcher(),
    )
    async with serving(file) as client:
        outputs = await client.ask(ask)
    assert (outputs.tokens, outputs.end) == ([end], Ended("a", FinishReason.STOP, end))


async def test_end_tokens_are_tried_once_before_first_grammar(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[CompletionBody] = []

    class RecordingClient(LlamaCppClient):
        async def complete(self, body: CompletionBody, receive: ChunkReceiver) -> None:
            if body.n_predict == 1:
                trials.append(body)
            await super().complete(body, receive)

    monkeypatch.setattr(server_lifecycle, "LlamaCppClient", RecordingClient)
    grammar = Compiler(TOKENIZER, END_TEXTS).compile_text('start: "x"', None)
    async with serving(file) as client:
        plain = TokenRequest(id="a", prompt=ids("Hi"), max_tokens=3, sampling=GREEDY)
        expected = (await client.ask(plain)).tokens
        assert not trials
        asks = [
            TokenRequest(
                id=f"{number}",
                prompt=ids("Hi"),
                max_tokens=5,
                sampling=GREEDY,
                stop_token_ids=frozenset(END_TEXTS),
                grammar=grammar.text,
                matcher=grammar.build_matcher(),
            )
            for number in range(3)
        ]
        answers = await asyncio.gather(*map(client.ask, asks))
        assert len(trials) == len(END_TEXTS)
        assert {TOKENIZER.decode(answer.tokens) for answer in answers} == {"x"}
        assert (await client.ask(plain)).tokens == expected


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    "question", ["What is the weather in Rome?", "What is the opposite of hot?"]
)
async def test_response_with_tools_ends_before_length_limit(
    file: Path, question: str, choice: str
) -> None:
    models = build_models(
        Settings(model=str(file), max_model_len=1024, max_num_seqs=4, threads=1), SystemClock()
    )
    await models.start()
    subject = EngineUnderTest(next(iter(models)))
    schema = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
    prompt = msgspec.structs.replace(
        build_conversation(question),
        tools=(FunctionTool("get_weather", None, schema, strict=True),),
        tool_choice=ToolChoice(choice),
    )
    request = GenerateRequest(
        subject.model.name,
        prompt,
        sampling=SamplingOptions(temperature=0.0),
        limits=GenerationLimits(max_tokens=300),
    )
    answer = (await subject.complete(request)).choices[0]
    await models.stop()
    assert answer.reason is not FinishReason.LENGTH
    assert len(answer.list_calls()) <= 1


def test_sentencepiece_tokenizer_matches_llamacpp(tmp_path: Path) -> None:
    file = write_embedded(tmp_path / "spm.gguf", vocabulary=add_sentencepiece)
    tokenizer = build_gguf_tokenizer(read_metadata(file))
    process = LlamaCppProcess(
        LaunchSettings(str(file), context=256, sequences=1, batch=256, ubatch=256)
    )
    process.start()
    try:
        texts = [
            "return writer.add_token_list(names)",
            "  def  f():\n\t東京 😀",
            "a",
            " ",
            "x" * 50,
            "Größe  ½",
        ]
        for text in [*texts, *Path(__file__).read_text().splitlines()[::9]]:
            ids = tokenizer.encode(text, special=False)
            assert ids == list(tokenize(process.socket, process.key, text)), text
            assert b"".join(map(tokenizer.token_bytes, ids)).decode().strip() == text.strip()
        assert tokenizer.encode("a", special=True, add_special_tokens=True)[0] == 1
    finally:
        process.stop()
