"""The vLLM engine with vLLM's real front end, scheduler and processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path

import httpx2
import msgspec
import numpy as np
import pytest
import pytest_asyncio
from tests.engines.harness import GREEDY, Outputs, run_alone
from tests.engines.tiny.models import write_tensors

from dragoman.core.capabilities import Feature
from dragoman.core.errors import ContextTooLong, EngineError, Overloaded, RequestError, Unsupported
from dragoman.core.events import FinishReason
from dragoman.core.request import Extras, Sampling
from dragoman.core.token_engine import (
    Ended,
    Failed,
    ReasoningBudget,
    Rejected,
    Sampled,
    TokenOutput,
    TokenRequest,
    WeightVersionSet,
)
from dragoman.core.weight_updates import WeightsInMemory, WeightsOnDisk
from dragoman.engines import tiny
from dragoman.engines.safetensors_reader import Tensors
from dragoman.engines.tiny.llama import Llama, read_model
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock

from .serving import DIES_OF, settings, start_vllm, without_accelerator

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),
]

PROMPT = tuple(np.random.default_rng(5).integers(3, 2048, 300).tolist())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def models() -> AsyncGenerator[Models]:
    async with start_vllm(settings()) as models:
        yield models


class Client:
    """Sends requests to a served model's engine and collects the outputs."""

    def __init__(self, models: Models) -> None:
        self.model = next(iter(models))
        assert isinstance(self.model.backend, TokenBackend)
        self.engine = self.model.backend.engine
        self._has_output = asyncio.Event()

    def send(self, request: TokenRequest) -> Outputs:
        outputs = Outputs()

        def deliver(output: TokenOutput) -> None:
            outputs.append(output)
            self._has_output.set()

        self.engine.add(request, deliver)
        return outputs

    async def until(self, outputs: Outputs, tokens: int | None = None) -> Outputs:
        """It has so many tokens, or has ended."""

        def reached() -> bool:
            over = bool(outputs) and isinstance(outputs[-1], Ended | Failed | Rejected)
            return over or (tokens is not None and len(outputs.tokens) >= tokens)

        while not reached():
            self._has_output.clear()
            await asyncio.wait_for(self._has_output.wait(), 30)
        return outputs

    async def ask(self, request: TokenRequest) -> Outputs:
        return await self.until(self.send(request))


@pytest.fixture
def client(models: Models) -> Client:
    return Client(models)


def test_build_models_invalid_vllm_args_raise() -> None:
    def built(**more: object) -> None:
        build_models(settings(**more), SystemClock())

    with without_accelerator():
        with pytest.raises(Exception, match="Did you mean `tensor_parallel_size`"):
            built(tensor_parallel_sise=2)
        with pytest.raises(Exception, match="`model` cannot be set here"):
            built(model="elsewhere")
        with pytest.raises(Exception, match="vllm_args must be a JSON object"):
            build_models(settings().replace(vllm_args="[1]"), SystemClock())
        with pytest.raises(Exception, match="vLLM rejects these arguments"):
            built(max_model_len=100_000)


async def test_bundled_model_matches_numpy(client: Client, bundled_model: Llama) -> None:
    ask = TokenRequest(
        id="same", prompt=PROMPT, max_tokens=40, sampling=GREEDY, logprobs=3, prompt_logprobs=1
    )
    ours, theirs = run_alone(bundled_model, ask), await client.ask(ask)
    assert theirs.tokens == ours.tokens
    assert theirs.end == ours.end
    for one, other in zip(theirs.scores, ours.scores, strict=True):
        assert one is not None
        assert other is not None
        assert (one.rank, [id for id, _ in one.top]) == (other.rank, [id for id, _ in other.top])
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    (found,) = theirs.prompt
    (expected,) = ours.prompt
    assert [one and one.rank for one in found.logprobs] == [
        one and one.rank for one in expected.logprobs
    ]


async def test_prefix_cache_hits_only_for_same_salt(client: Client) -> None:
    ask = TokenRequest(
        id="first", prompt=PROMPT[::-1], max_tokens=4, sampling=GREEDY, cache_salt="a\nb"
    )
    first = await client.ask(ask)
    again = await client.ask(msgspec.structs.replace(ask, id="again"))
    other = await client.ask(msgspec.structs.replace(ask, id="other", cache_salt="ab\n"))
    assert (first.cached, again.cached, other.cached) == ([0], [288], [0])
    assert again.tokens == first.tokens == other.tokens


async def test_bad_words_and_stop_tokens_are_applied(client: Client) -> None:
    ask = TokenRequest(id="free", prompt=PROMPT, max_tokens=12, sampling=GREEDY)
    free = (await client.ask(ask)).tokens
    banned = msgspec.structs.replace(
        ask, id="banned", sampling=Sampling(temperature=0, bad_words=((free[0],),))
    )
    assert free[0] not in (await client.ask(banned)).tokens
    stop = next(token for token in free if token != free[0])
    stopped = await client.ask(
        msgspec.structs.replace(ask, id="stopped", stop_token_ids=frozenset({stop}))
    )
    assert stopped.tokens == free[: free.index(stop) + 1]
    assert stopped.end == Ended("stopped", FinishReason.STOP, stop=stop)
    other = msgspec.structs.replace(ask, id="kept", stop_token_ids=frozenset({stop}), min_tokens=12)
    assert (await client.ask(other)).end == Ended("kept", FinishReason.LENGTH)


async def test_reasoning_budget_ends_reasoning(client: Client) -> None:
    assert Feature.REASONING_BUDGET in client.model.capabilities.features
    tokenizer = client.model.tokenizer
    reasoning = client.model.formats.reasoning
    assert tokenizer is not None
    assert reasoning is not None
    marks = (reasoning.syntax.begin, reasoning.syntax.end)
    begin, end = (tuple(tokenizer.encode(mark, special=True)) for mark in marks)
    prompt = (*PROMPT, *begin)
    limit = ReasoningBudget(5, begin, end, end, is_open=True)
    ask = TokenRequest(
        id="think", prompt=prompt, max_tokens=20, sampling=GREEDY, reasoning_budget=limit
    )
    tokens = tuple((await client.ask(ask)).tokens)
    assert tokens[5 : 5 + len(end)] == end
    strange = ReasoningBudget(5, end, begin, begin, is_open=True)
    with pytest.raises(Unsupported, match="does not support reasoning budgets"):
        client.send(msgspec.structs.replace(ask, id="strange", reasoning_budget=strange))


@pytest.mark.parametrize("seed", [-1, 0, 2**63, -(2**63)])
async def test_sampling_seed_of_any_value_is_reproducible(client: Client, seed: int) -> None:
    ask = TokenRequest(
        id=f"a{seed}", prompt=PROMPT, max_tokens=12, sampling=Sampling(temperature=1.5, seed=seed)
    )
    first, second = (
        await client.ask(ask),
        await client.ask(msgspec.structs.replace(ask, id=f"b{seed}")),
    )
    assert first.tokens == second.tokens


async def test_invalid_request_is_rejected_with_param(client: Client) -> None:
    ask = TokenRequest(id="no", prompt=PROMPT, max_tokens=4)
    with pytest.raises(RequestError, match=r"temperature must be in \[0, 2\]") as rejected:
        client.send(msgspec.structs.replace(ask, sampling=Sampling(temperature=3.0)))
    assert rejected.value.param == "temperature"
    with pytest.raises(ContextTooLong):
        client.send(msgspec.structs.replace(ask, prompt=PROMPT * 20))
    with pytest.raises(Unsupported):
        client.send(msgspec.structs.replace(ask, grammar='{"grammars": []}'))
    # Only vLLM's own check of the whole request finds this one.
    (output,) = await client.ask(msgspec.structs.replace(ask, logprobs=21))
    assert isinstance(output, Rejected)
    assert (output.error.status, output.error.param) == (400, "logprobs")
    assert client.engine.health().waiting == 0


async def test_abort_frees_blocks(client: Client) -> None:
    ask = TokenRequest(id="long", prompt=PROMPT, max_tokens=3000, sampling=GREEDY)
    outputs = await client.until(client.send(ask), tokens=4)
    client.engine.abort("long")
    count = len(outputs)
    client.engine.abort("unknown")
    client.send(msgspec.structs.replace(ask, id="never"))
    client.engine.abort("never")
    await client.ask(msgspec.structs.replace(ask, id="after", max_tokens=30))
    assert len(outputs) == count
    monitored = client.model.interfaces.stats_source
    assert monitored is not None
    (stats,) = monitored.stats()
    assert (stats.running, stats.waiting, stats.kv_cache_usage) == (0, 0, 0.0)
    assert client.engine.health().running == 0


async def test_stats_report_vllm_counters(client: Client) -> None:
    monitored = client.model.interfaces.stats_source
    assert monitored is not None
    (stats,) = monitored.stats()
    before = (
        stats.prompt_tokens,
        stats.generation_tokens,
        stats.success["length"],
        stats.ttft.count,
    )
    await client.ask(TokenRequest(id="counted", prompt=PROMPT, max_tokens=5))
    assert (
        stats.prompt_tokens,
        stats.generation_tokens,
        stats.success["length"],
        stats.ttft.count,
    ) == (
        before[0] + 300,
        before[1] + 5,
        before[2] + 1,
        before[3] + 1,
    )
    assert stats.prefix_cache_hits
    assert stats.cache is not None
    assert stats.cache.block_size == 16


async def test_adapter_load_failure_fails_only_its_request(client: Client, tmp_path: Path) -> None:
    adapters = client.model.adapters
    assert adapters is not None
    assert Feature.LORA in client.model.capabilities.features
    engine = client.engine
    ask = TokenRequest(
        id="l", prompt=PROMPT, max_tokens=4, sampling=GREEDY, extras=Extras(lora="sql")
    )
    (output,) = await client.ask(ask)
    assert isinstance(output, Rejected)
    with pytest.raises(RequestError, match="no such directory"):
        await engine.load_adapter("sql", str(tmp_path / "nowhere"))  # pyright: ignore
    await engine.load_adapter("sql", str(tmp_path))  # pyright: ignore
    first = await client.ask(ask)
    assert isinstance(first.end, Ended)
    await engine.load_adapter("sql", str(tmp_path))  # pyright: ignore
    again = await client.ask(msgspec.structs.replace(ask, id="l2"))
    assert again.cached == [0], "the second one does not reuse the first one's blocks"
    # The second load of `sql` may have had this name in vLLM.
    await engine.load_adapter("sql#3", str(tmp_path))  # pyright: ignore
    other = await client.ask(msgspec.structs.replace(ask, id="l3", extras=Extras(lora="sql#3")))
    assert other.cached == [0]


async def test_adapter_load_failure_at_startup_skips_only_adapter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "good").mkdir()
    modules = (f"bad={tmp_path / 'bad'}", f"good={tmp_path / 'good'}")
    async with start_vllm(settings().replace(lora_modules=modules)) as models:
        model = next(iter(models))
        assert model.adapters is not None
        assert [adapter.name for adapter in model.adapters] == ["good"]
        assert "The adapter bad is not served, because vLLM cannot load it" in caplog.text
        ask = TokenRequest(
            id="b", prompt=PROMPT, max_tokens=2, sampling=GREEDY, extras=Extras(lora="good")
        )
        assert len((await Client(models).ask(ask)).tokens) == 2


async def test_data_parallel_rank_is_validated_by_vllm(client: Client) -> None:
    ask = TokenRequest(id="r", prompt=PROMPT, max_tokens=2, sampling=GREEDY)
    extras = Extras(data_parallel_rank=0, session_id="s")
    assert len((await client.ask(msgspec.structs.replace(ask, extras=extras))).tokens) == 2
    (output,) = await client.ask(msgspec.structs.replace(ask, extras=Extras(data_parallel_rank=1)))
    assert isinstance(output, Rejected)
    assert output.error.status == 400
    assert "data_parallel_rank 1" in output.error.message


def write_changed_weights(directory: Path) -> Path:
    """The embedded model's tensors, with the MLPs of one layer negated."""
    source = tiny.find_bundled_model()
    old = Tensors(source)
    shapes = {name: shape for name, (_, shape) in old.layout.items()}
    changed = {name: old.take(name, *shape) for name, shape in shapes.items()}
    changed["model.layers.0.mlp.down_proj.weight"] *= -1
    write_tensors(directory / "model.safetensors", changed)
    (directory / "config.json").write_bytes((source / "config.json").read_bytes())
    return directory


async def test_update_weights_applies_to_running_sequence(
    client: Client, bundled_model: Llama, tmp_path: Path
) -> None:
    """Tokens before the change are from the old weights, later ones from the new; the
    answer reports the position.
    """
    trainable = client.model.interfaces.trainable
    assert trainable is not None
    ask = TokenRequest(id="old", prompt=PROMPT, max_tokens=60, sampling=GREEDY)
    old = (await client.ask(ask)).tokens
    changed = write_changed_weights(tmp_path)
    running = await client.until(
        client.send(msgspec.structs.replace(ask, id="run", max_tokens=200)), tokens=3
    )
    assert await trainable.update_weights(WeightsOnDisk(str(changed)), "step-1") == "step-1"
    await client.until(running)
    versions = [
        place for place, output in enumerate(running) if isinstance(output, WeightVersionSet)
    ]
    assert [running[place] for place in versions] == [
        WeightVersionSet("run", "default"),
        WeightVersionSet("run", "step-1"),
    ]
    before = sum(isinstance(output, Sampled) for output in running[: versions[1]])
    assert running.tokens[: min(before, 60)] == old[:before]
    rest = TokenRequest(
        id="rest",
        prompt=(*PROMPT, *running.tokens[:before]),
        max_tokens=200 - before,
        sampling=GREEDY,
    )
    assert run_alone(read_model(changed), rest).tokens == running.tokens[before:]
    file = (tiny.find_bundled_model() / "model.safetensors").read_bytes()
    assert await trainable.update_weights(WeightsInMemory((file,))) == "step-1+2"
    back = await client.ask(msgspec.structs.replace(ask, id="back"))
    assert (back.tokens, back.cached) == (old, [0]), "no cached block of other weights is used"
    await trainable.set_weight_version("renamed")
    assert trainable.weight_version == "renamed"


async def test_lost_weights_after_restart_are_not_replaced_by_initial(
    tmp_path: Path,
) -> None:
    async with start_vllm(settings()) as models:
        client = Client(models)
        trainable = client.model.interfaces.trainable
        place = models.slots[0]
        assert trainable is not None
        ask = TokenRequest(id="v", prompt=PROMPT, max_tokens=2, sampling=GREEDY)
        await trainable.set_weight_version("step-0")
        await place.stop()
        await place.start()
        assert WeightVersionSet("v", "step-0") in await client.ask(ask)
        file = WeightsOnDisk(str(tiny.find_bundled_model()))
        for version in ("step-1", "step-2"):
            await trainable.update_weights(file, version)
            await place.stop()
            await place.start()
            assert trainable.weight_version == "default"
            with pytest.raises(Overloaded, match=f"lost the weights of version '{version}'"):
                client.send(ask)
        assert await trainable.update_weights(file) == "default+3"
        assert WeightVersionSet("v", "default+3") in await client.ask(ask)


async def test_update_weights_mismatch_raises_and_keeps_weights(
    client: Client, tmp_path: Path
) -> None:
    trainable = client.model.interfaces.trainable
    assert trainable is not None
    version = trainable.weight_version
    ask = TokenRequest(id="same", prompt=PROMPT, max_tokens=9, sampling=GREEDY)
    tokens = (await client.ask(ask)).tokens
    some = {"model.norm.weight": np.zeros(3, np.float32), "x": np.zeros(1, np.float32)}
    write_tensors(tmp_path / "some.safetensors", some)
    with pytest.raises(RequestError, match=r"contain no tensor model\.embed_tokens\.weight"):
        await trainable.update_weights(WeightsOnDisk(str(tmp_path)))
    old = Tensors(tiny.find_bundled_model())
    wrong = {name: np.zeros((1, *shape), np.float32) for name, (_, shape) in old.layout.items()}
    write_tensors(tmp_path / "some.safetensors", wrong)
    with pytest.raises(RequestError, match=r"model.embed_tokens.weight has shape \(1, "):
        await trainable.update_weights(WeightsOnDisk(str(tmp_path / "some.safetensors")))
    assert trainable.weight_version == version
    assert (await client.ask(msgspec.structs.replace(ask, id="again"))).tokens == tokens


async def test_pause_keep_resumes_with_same_tokens(client: Client) -> None:
    control = client.model.interfaces.control
    assert control is not None
    ask = TokenRequest(id="free", prompt=PROMPT, max_tokens=60, sampling=GREEDY)
    free = await client.ask(ask)
    held = await client.until(client.send(msgspec.structs.replace(ask, id="held")), tokens=2)
    await control.pause("keep")
    assert control.is_paused
    late = client.send(msgspec.structs.replace(ask, id="late"))
    assert held.end is None
    assert len(late) == 0
    await control.resume()
    assert (await client.until(held)).tokens == free.tokens == (await client.until(late)).tokens
    assert not control.is_paused


async def test_pause_abort_ends_running_and_rejects_new_requests(client: Client) -> None:
    control = client.model.interfaces.control
    assert control is not None
    ask = TokenRequest(id="cut", prompt=PROMPT, max_tokens=2000, sampling=GREEDY)
    cut = await client.until(client.send(ask), tokens=2)
    await control.pause("abort")
    assert (await client.until(cut)).end == Ended("cut", FinishReason.ABORT)
    (output,) = await client.ask(msgspec.structs.replace(ask, id="come"))
    assert isinstance(output, Rejected)
    assert (output.error.status, output.error.code) == (503, "engine_paused")
    await control.resume()
    assert (
        len((await client.ask(msgspec.structs.replace(ask, id="again", max_tokens=2))).tokens) == 2
    )


async def test_abort_all_ends_running_and_waiting_requests(client: Client) -> None:
    control = client.model.interfaces.control
    assert control is not None
    ask = TokenRequest(id="running", prompt=PROMPT, max_tokens=2000, sampling=GREEDY)
    running = await client.until(client.send(ask), tokens=1)
    fresh = client.send(msgspec.structs.replace(ask, id="fresh"))
    assert await control.abort_all() == 2
    assert (await client.until(running)).end == Ended("running", FinishReason.ABORT)
    assert (await client.until(fresh)).end == Ended("fresh", FinishReason.ABORT)


async def test_sleep_without_sleep_mode_allows_only_level_0(
    client: Client,
) -> None:
    control = client.model.interfaces.control
    assert control is not None
    with pytest.raises(Unsupported, match="enable_sleep_mode"):
        await control.sleep(1)
    await control.sleep(0, "keep")
    outputs = client.send(TokenRequest(id="asleep", prompt=PROMPT, max_tokens=2))
    assert (control.is_paused, control.sleep_level) == (True, 0)
    await control.wake_up()
    assert len((await client.until(outputs)).tokens) == 2


async def test_reset_prefix_cache_removes_hits(client: Client) -> None:
    cache = client.model.interfaces.cache
    assert cache is not None
    ask = TokenRequest(id="filling", prompt=PROMPT[7:], max_tokens=2)
    await client.ask(ask)
    assert (await client.ask(msgspec.structs.replace(ask, id="found"))).cached == [288]
    assert await cache.reset_prefix_cache()
    assert (await client.ask(msgspec.structs.replace(ask, id="gone"))).cached == [0]
    assert cache.count_cached_tokens(PROMPT, "") is None


class ManualClock:
    """A clock that is advanced by hand, without a watchdog."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def never(self, _: float) -> None:
        await asyncio.Event().wait()


async def test_core_exit_fails_streams_and_restarts_engine() -> None:
    hours = ManualClock()
    with without_accelerator():
        built = build_models(settings(), SystemClock())
        models = Models(list(built), clock=hours, sleep=hours.never)
        await models.start()
        try:
            await dies_and_comes_back(models, hours)
        finally:
            await models.stop()


async def dies_and_comes_back(models: Models, hours: ManualClock) -> None:
    (place,) = models.slots
    client = Client(models)
    path = "/v1/chat/completions"
    bystander = await client.until(
        client.send(TokenRequest(id="by", prompt=PROMPT, max_tokens=900)), tokens=1
    )
    body = {
        "model": place.name,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 20,
        "min_tokens": 9,
    }
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        deadly = await http.post(path, json=body | {"stream": True, "stop_token_ids": [DIES_OF]})
        chunks = [
            json.loads(line.removeprefix("data: "))
            for line in deadly.text.split("\n\n")
            if "{" in line
        ]
        assert deadly.status_code == 200
        assert chunks[-2]["choices"][0]["delta"]["content"]
        assert chunks[-1]["error"]["code"] == "engine_error"
        assert isinstance((await client.until(bystander)).end, Failed)
        assert (await http.get("/health")).status_code == 503
        assert client.engine.health().failed
        await models.poll(place)
        rejected = await http.post(path, json=body)
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "overloaded")
        hours.now += 3600
        await models.poll(place)
        assert (await http.get("/health")).status_code == 200
        answer = await http.post(path, json=body)
        assert answer.json()["usage"]["completion_tokens"] >= 9
    running = await client.until(
        client.send(TokenRequest(id="last", prompt=PROMPT, max_tokens=900)), tokens=1
    )
    await models.stop()
    assert isinstance(running.end, Failed)
    with pytest.raises(EngineError):
        client.send(TokenRequest(id="late", prompt=PROMPT, max_tokens=1))


def test_build_engine_arguments_maps_settings() -> None:
    engine_settings = msgspec.structs.replace(
        settings(gpu_memory_utilization=0.5),
        enable_prefix_caching=False,
        kv_events_config='{"publisher": "zmq"}',
    )
    engine_settings = msgspec.structs.replace(
        engine_settings, speculative_config='{"method": "ngram", "num_speculative_tokens": 2}'
    )
    with without_accelerator():
        from dragoman.launch.engines.vllm.build import build_engine_arguments

        arguments = build_engine_arguments(engine_settings)
    assert (
        arguments["max_model_len"],
        arguments["max_num_seqs"],
        arguments["gpu_memory_utilization"],
    ) == (
        4096,
        32,
        0.5,
    )
    assert arguments["enable_prefix_caching"] is False
    assert "enable_chunked_prefill" not in arguments, "vLLM decides"
    assert arguments["kv_events_config"] == {"publisher": "zmq"}
    assert arguments["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 2}


def test_counters_sum_speculative_decoding_stats() -> None:
    with without_accelerator():
        stats = import_module("vllm.v1.metrics.stats")
        drafting = import_module("vllm.v1.spec_decode.metrics")
        counters = import_module("dragoman.engines.vllm.counters").VllmCounters()
        for accepted in (2, 0, 1):
            drafts = drafting.SpecDecodingStats.new(2)
            drafts.observe_draft(2, accepted)
            counters.record(stats.SchedulerStats(spec_decoding_stats=drafts), None, 0)
    (core,) = counters.list_all()
    assert (core.drafts, core.draft_tokens, core.accepted_tokens) == (3, 6, 3)
    assert core.accepted_by_position == {"0": 2, "1": 1}
