"""Several models are found by name or pattern, loaded on demand, unloaded, and
restarted when they fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.pipeline.failing_engine import Clock, FailingEngine, sleep_forever
from tests.serving.harness import load_tiny_tokenizer

from dragoman.core.errors import EngineError, ModelNotFound, Overloaded
from dragoman.core.message import Message, Role, Text
from dragoman.core.request import Conversation, GenerateRequest
from dragoman.pipeline.admit import admit
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_lifecycle import ModelSpec, ModelState, SlotHistory
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.testing.engine_under_test import build_terms

ASK = GenerateRequest("m", Conversation((Message(Role.USER, (Text("hi"),)),)))


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return load_tiny_tokenizer()


def build_model(name: str, engine: FailingEngine) -> ServedModel:
    return ServedModel(name, EventBackend(engine), 4096, 0)


class ModelHost:
    """Builds models and records their engines, so that tests can inspect them."""

    def __init__(
        self,
        tokenizer: HfTokenizer,
        *,
        memory: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = sleep_forever,
    ) -> None:
        self.tokenizer = tokenizer
        self.clock = Clock()
        self.engines: dict[str, list[FailingEngine]] = {}
        self.broken = False
        self.start_error: Exception | None = None
        offers = [
            self._offer("a", ttl=60.0),
            self._offer("b"),
            self._offer("c"),
            self._offer("pinned", pinned=True),
        ]
        self.models = Models(offers, memory=memory, clock=self.clock, sleep=sleep)

    def _offer(self, name: str, ttl: float | None = None, *, pinned: bool = False) -> ModelSpec:
        def load() -> ServedModel:
            if self.broken:
                raise OSError("no such file")
            self.engines.setdefault(name, []).append(FailingEngine(self.tokenizer))
            self.engines[name][-1].start_error = self.start_error
            return build_model(name, self.engines[name][-1])

        return ModelSpec(name, load, 0, ttl=ttl, memory=10, is_eager=pinned)

    @property
    def loaded(self) -> list[str]:
        return [place.name for place in self.models.slots if place.state is ModelState.LOADED]

    async def tend(self) -> None:
        for place in self.models.slots:
            await self.models.poll(place)


async def count_events(model: ServedModel) -> int:
    run = await admit(model, [ASK], build_terms())
    return len([event async for batch in run.batches for event in batch])


def names(*served_names: str) -> Models:
    first, *aliases = served_names
    model = ServedModel(
        first, EventBackend(FailingEngine(load_tiny_tokenizer())), 1, 0, tuple(aliases)
    )
    return Models([model, ServedModel("other", model.backend, 1, 0)])


def test_find_loaded_matches_alias_pattern() -> None:
    models = names("house", "claude-*", "gpt-?o")
    assert models.find_loaded("claude-sonnet-4-5").name == "house"
    assert models.find_loaded("gpt-4o").name == "house"
    for wrong in ("claude", "gpt-40o", "Claude-x", "*"):
        with pytest.raises(ModelNotFound):
            models.find_loaded(wrong)


def test_find_loaded_prefers_name_over_pattern() -> None:
    assert names("house", "o*").find_loaded("other").name == "other"


async def test_concurrent_requests_load_model_once(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer)
    assert host.loaded == []
    found = await asyncio.gather(*(host.models.load_and_find("a") for _ in range(5)))
    assert len({id(model) for model in found}) == 1
    assert (host.loaded, len(host.engines["a"])) == (["a"], 1)
    assert await count_events(found[0]) > 0


async def test_disconnect_during_load_does_not_cancel_it_for_others(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer)
    first, second = (asyncio.create_task(host.models.load_and_find("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).name == "a"


async def test_failed_load_raises_error_and_is_retried_after_backoff(
    tokenizer: HfTokenizer,
) -> None:
    host = ModelHost(tokenizer)
    host.broken = True
    with pytest.raises(EngineError, match="could not be loaded"):
        await host.models.load_and_find("a")
    with pytest.raises(
        Overloaded, match="`a` could not be loaded; the next attempt is in"
    ) as found:
        await host.models.load_and_find("a")
    assert found.value.retry_after
    host.broken = False
    host.clock.now += 60
    await host.tend()
    assert (await host.models.load_and_find("a")).name == "a"


async def test_models_unload_idle_model_after_ttl(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer)
    await host.models.load_and_find("a")
    await host.models.load_and_find("b")
    host.clock.now += 59
    await host.tend()
    assert host.loaded == ["a", "b"]
    host.clock.now += 1
    await host.tend()
    assert host.loaded == ["b"]
    assert not host.engines["a"][0].health().ready


async def test_models_unload_skips_model_in_use(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer)
    run = await admit(await host.models.load_and_find("a"), [ASK], build_terms())
    await anext(run.batches)
    host.clock.now += 1000
    await host.tend()
    assert host.loaded == ["a"]
    await run.batches.aclose()
    host.clock.now += 60
    await host.tend()
    assert host.loaded == []


async def test_memory_limit_unloads_least_recently_used_model(
    tokenizer: HfTokenizer,
) -> None:
    host = ModelHost(tokenizer, memory=20)
    for name in ("a", "b", "a", "c"):
        host.clock.now += 1
        await host.models.load_and_find(name)
    assert host.loaded == ["a", "c"]


async def test_memory_limit_unload_waits_for_running_requests(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer, memory=10)
    run = await admit(await host.models.load_and_find("a"), [ASK], build_terms())
    await anext(run.batches)
    waiting = asyncio.create_task(host.models.load_and_find("b"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    again = asyncio.create_task(host.models.load_and_find("a"))
    rest = [event async for batch in run.batches for event in batch]
    assert rest
    assert (await waiting).name == "b"
    assert (await again).name == "a"
    assert host.loaded == ["a"]


async def test_memory_limit_does_not_starve_waiting_requests(
    tokenizer: HfTokenizer,
) -> None:
    host = ModelHost(tokenizer, memory=10)

    async def ask(name: str) -> int:
        return await count_events(await host.models.load_and_find(name))

    assert all(await asyncio.gather(*(ask("abc"[number % 3]) for number in range(12))))


async def test_unread_response_does_not_keep_model_loaded(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer, memory=10)
    run = await admit(await host.models.load_and_find("a"), [ASK], build_terms())
    waiting = asyncio.create_task(host.models.load_and_find("b"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    del run
    assert (await waiting).name == "b"


async def test_admit_on_unloaded_model_returns_503(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer, memory=10)
    model = await host.models.load_and_find("a")
    await host.models.load_and_find("b")
    with pytest.raises(Overloaded):
        await admit(model, [ASK], build_terms())


async def test_model_over_memory_limit_raises_engine_error(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer, memory=5)
    with pytest.raises(EngineError, match="more memory"):
        await host.models.load_and_find("a")


async def test_restricted_view_load_unloads_other_model(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer, memory=10)
    await host.models.load_and_find("a")
    await host.models.restrict(("b",)).load_and_find("b")
    assert host.loaded == ["b"]


def test_restricted_view_allows_adapter_without_base_model(tokenizer: HfTokenizer) -> None:
    spec = ModelSpec(
        "base", lambda: build_model("base", FailingEngine(tokenizer)), 0, adapters=("adapter",)
    )
    view = Models([spec]).restrict(("adapter",))
    assert view.find_slot("adapter").name == "base"
    with pytest.raises(ModelNotFound):
        view.find_slot("base")


async def test_restricted_view_follows_model_reload(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer)
    await host.models.start()
    view = host.models.restrict(("a", "b"))
    host.models.replace_models([slot for slot in host.models.slots if slot.name != "b"])
    assert [slot.name for slot in view.slots] == ["a"]
    with pytest.raises(ModelNotFound):
        view.find_slot("b")
    await host.models.stop()


async def test_removed_model_requests_end_when_engine_fails(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer, sleep=lambda _: asyncio.sleep(0))
    await host.models.start()
    run = await admit(await host.models.load_and_find("a"), [ASK], build_terms())
    await anext(run.batches)
    slot = host.models.find_slot("a")
    (engine,) = host.engines["a"]
    engine.dead = engine.ignores_stop = True
    host.models.replace_models([other for other in host.models.slots if other is not slot])
    with pytest.raises(EngineError, match="failed"):
        async with asyncio.timeout(60):
            await anext(run.batches)
    for _ in range(20):
        await asyncio.sleep(0)
    assert slot.model is None
    await host.models.stop()


async def test_pinned_model_is_not_unloaded_for_others(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer, memory=10)
    for name in ("a", "pinned", "b"):
        await host.models.begin_load(host.models.find_slot(name))
    assert host.loaded == ["b", "pinned"]


async def test_unexpected_load_error_raises_engine_error_with_backoff(
    tokenizer: HfTokenizer,
) -> None:
    host = ModelHost(tokenizer)
    host.start_error = RuntimeError("CUDA out of memory")
    with pytest.raises(EngineError, match="could not be loaded"):
        await host.models.load_and_find("a")
    with pytest.raises(Overloaded, match="the next attempt is in"):
        await host.models.load_and_find("a")
    assert len(host.engines["a"]) == 1


async def test_model_unloaded_during_restart_is_loaded_again(tokenizer: HfTokenizer) -> None:
    host = ModelHost(tokenizer, memory=10)
    await host.models.load_and_find("a")
    slot = host.models.find_slot("a")
    (engine,) = host.engines["a"]
    engine.dead = True
    await host.tend()
    host.clock.now += 60
    engine.may_start.clear()
    restart = asyncio.create_task(host.models.poll(slot))
    other = asyncio.create_task(host.models.load_and_find("b"))
    for _ in range(20):
        await asyncio.sleep(0)
    engine.may_start.set()
    await asyncio.gather(restart, other)
    assert host.loaded == ["b"]
    assert (await host.models.load_and_find("a")).name == "a"


async def test_failed_model_is_unloaded_when_engine_ignores_stop(
    tokenizer: HfTokenizer,
) -> None:
    host = ModelHost(tokenizer, memory=10)
    run = await admit(await host.models.load_and_find("a"), [ASK], build_terms())
    await anext(run.batches)
    (engine,) = host.engines["a"]
    engine.dead = engine.ignores_stop = True
    rest = asyncio.ensure_future(anext(run.batches))
    await host.tend()
    other = asyncio.create_task(host.models.load_and_find("b"))
    with pytest.raises(EngineError, match="failed"):
        await rest
    assert (await other).name == "b"


async def dying(tokenizer: HfTokenizer) -> tuple[Models, FailingEngine, Clock]:
    engine = FailingEngine(tokenizer)
    clock = Clock()
    models = Models([build_model("m", engine)], clock=clock, sleep=sleep_forever)
    await models.start()
    return models, engine, clock


async def test_engine_death_fails_running_requests(tokenizer: HfTokenizer) -> None:
    models, engine, _ = await dying(tokenizer)
    run = await admit(models.find_loaded("m"), [ASK], build_terms())
    await anext(run.batches)
    engine.dead = True
    rest = asyncio.ensure_future(anext(run.batches))
    await asyncio.sleep(0)
    (place,) = models.slots
    await models.poll(place)
    with pytest.raises(EngineError, match="crashed"):
        await rest
    with pytest.raises(Overloaded):
        models.find_loaded("m")
    await models.stop()


async def test_dead_engine_is_restarted_after_backoff(tokenizer: HfTokenizer) -> None:
    models, engine, clock = await dying(tokenizer)
    (place,) = models.slots
    engine.dead = True
    await models.poll(place)
    assert engine.starts == 1
    clock.now += 0.5
    await models.poll(place)
    assert engine.starts == 2
    assert await count_events(models.find_loaded("m")) > 0
    await models.stop()


async def test_engine_restart_backoff_grows_to_60_seconds(tokenizer: HfTokenizer) -> None:
    models, engine, clock = await dying(tokenizer)
    (place,) = models.slots
    engine.dead = engine.refuses = True
    await models.poll(place)
    pauses: list[float] = []
    for _ in range(10):
        pauses.append(place.retry_at - clock.now)
        clock.now = place.retry_at
        await models.poll(place)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    engine.refuses = False
    clock.now = place.retry_at
    await models.poll(place)
    assert await count_events(models.find_loaded("m")) > 0
    await models.stop()


async def test_engine_restart_backoff_resets_after_healthy_period(
    tokenizer: HfTokenizer,
) -> None:
    models, engine, clock = await dying(tokenizer)
    (place,) = models.slots
    for well, pause in ((1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (100.0, 0.5)):
        clock.now += well
        engine.dead = True
        await models.poll(place)
        assert place.retry_at - clock.now == pause
        clock.now = place.retry_at
        await models.poll(place)
    await models.stop()


async def test_slot_not_loaded_passes_its_history_on(tokenizer: HfTokenizer) -> None:
    # The process is replaced twice before a request needs the model.
    history = SlotHistory(2, 3, None, (("style", "/adapters/style"),))
    for _ in range(2):
        models = ModelHost(tokenizer).models
        models.succeed({"a": history})
        assert models.build_histories()["a"] == history
