"""The kit, run on every engine that can be had here."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jsonschema_rs
import msgspec
import pytest
import pytest_asyncio

from dragoman.core.engine import Feature
from dragoman.core.errors import ContextTooLong, DragomanError
from dragoman.core.events import FinishReason, PromptTokens
from dragoman.core.message import FunctionTool, ToolChoice
from dragoman.core.request import GenerateRequest, GenerationLimits, JsonSchema, Regex, SamplingOptions, StringChoices
from dragoman.dialects.base import Profile
from dragoman.engines import tiny
from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry
from dragoman.launch import Server, ShutdownConfig, build_models, build_uvicorn_config
from dragoman.launch.rollout import build_executor_model
from dragoman.pipeline.models import EventBackend, Models, ServedModel
from dragoman.pipeline.run import admit
from dragoman.prompts.tokenizer import load_tokenizer
from dragoman.serving.app import create_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.service import ServingOptions
from dragoman.settings import Settings
from tests.engines.kit import Subject, count_tokens, fold, ids, prompt_tokens, same, talk, terms
from tests.engines.llamacpp.files import write_embedded
from tests.engines.rollout.executors import Dice

LONG = "Once upon a time there was a fox. It lived near the river and was curious about the world."


def embedded() -> Models:
    return build_models(Settings(max_model_len=4096, max_num_seqs=32), SystemClock())


def in_torch() -> Models:
    pytest.importorskip("torch", reason="needs torch (CPU)")
    pytest.importorskip("transformers", reason="needs transformers")
    model = f"transformers:{tiny.find_bundled_model()}"
    return build_models(Settings(model=model, max_model_len=4096, max_num_seqs=32, device="cpu"), SystemClock())


def in_mlx() -> Models:
    pytest.importorskip("mlx.core", reason="needs mlx")
    pytest.importorskip("mlx_lm", reason="needs mlx-lm")
    model = f"mlx:{tiny.find_bundled_model()}"
    return build_models(Settings(model=model, max_model_len=4096, max_num_seqs=32, dtype="float32"), SystemClock())


@asynccontextmanager
async def in_llamacpp() -> AsyncGenerator[Models]:
    pytest.importorskip("xllamacpp", reason="needs xllamacpp")
    pytest.importorskip("gguf", reason="needs gguf")
    with TemporaryDirectory() as folder:
        file = write_embedded(Path(folder) / "tiny.gguf")
        settings = Settings(model=str(file), max_model_len=4096, max_num_seqs=32, threads=1, dtype="float32")
        async with started(build_models(settings, SystemClock())) as models:
            yield models


def scripted() -> Models:
    tokenizer = load_tokenizer(tiny.find_bundled_model())
    engine = ScriptedEngine(Script((ScriptEntry((Say(LONG),), repeat=True),)), tokenizer=tokenizer, max_model_len=4096)
    return Models([ServedModel("scripted", EventBackend(engine, tokenizer), 4096, 0)])


@asynccontextmanager
async def started(models: Models) -> AsyncGenerator[Models]:
    await models.start()
    yield models
    await models.stop()


@asynccontextmanager
async def upstream() -> AsyncGenerator[Models]:
    """The embedded model behind a server of its own, on a real socket."""
    behind = embedded()
    options = ServingOptions(profile=Profile.VLLM)
    server = Server(
        build_uvicorn_config(create_app(behind, options=options), Settings(log_level="error")),
        behind,
        shutdown_config=ShutdownConfig(timeout=0.0),
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        (model,) = await asyncio.to_thread(build_models, Settings(model=url), SystemClock())
        lent = replace(model, backend=EventBackend(model.backend.engine, next(iter(behind)).tokenizer))  # pyright: ignore
        async with started(Models([lent])) as models:
            yield models
        server.should_exit = True
        await task


def documented() -> Models:
    """The engine of a third party, as the docs have it."""
    page = Path(__file__).parents[2] / "docs" / "plugins.md"
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (Path(folder) / "parrot.py").write_text(re.findall("```python\n(.*?)```", page.read_text(), re.DOTALL)[0])
        patch.syspath_prepend(folder)  # pyright: ignore[reportUnknownMemberType]
        return build_models(Settings(model="python:parrot:create", max_model_len=4096), SystemClock())


def simulated() -> Models:
    settings = Settings(model="sim", max_model_len=4096, time_scale=1000.0, sim_output_tokens="lognormal:40,0.5")
    return build_models(settings, SystemClock())


def rollout() -> Models:
    return Models([build_executor_model(Settings(), SystemClock(), Dice(), own_name="dice", max_model_len=4096)])


SUBJECTS = [
    pytest.param(lambda: started(embedded()), id="tiny"),
    pytest.param(lambda: started(scripted()), id="scripted"),
    pytest.param(lambda: started(simulated()), id="sim"),
    pytest.param(lambda: started(in_torch()), id="transformers", marks=pytest.mark.torch),
    pytest.param(lambda: started(in_mlx()), id="mlx", marks=pytest.mark.mlx),
    pytest.param(in_llamacpp, id="llamacpp", marks=pytest.mark.llamacpp),
    pytest.param(upstream, id="upstream"),
    pytest.param(lambda: started(rollout()), id="rollout"),
    pytest.param(lambda: started(documented()), id="documented"),
]


@pytest_asyncio.fixture(params=SUBJECTS)
async def subject(request: pytest.FixtureRequest) -> AsyncGenerator[Subject]:
    make: Callable[[], AbstractAsyncContextManager[Models]] = request.param
    async with make() as models:
        yield Subject(next(iter(models)), exact=make is not in_llamacpp)


def sampling(**options: object) -> SamplingOptions:
    return SamplingOptions(**options)  # pyright: ignore[reportArgumentType]


GREEDY = sampling(temperature=0.0)


async def test_tokens_out_are_usage(subject: Subject) -> None:
    events = await subject.events(subject.request(sampling=GREEDY, limits=GenerationLimits(max_tokens=20)))
    usage = fold(events).usage
    assert usage.completion == count_tokens(events) <= 20
    assert usage.prompt == prompt_tokens(events) > 0


async def test_max_tokens_is_exact_and_told(subject: Subject) -> None:
    reply = await subject.reply(subject.request(sampling=GREEDY, limits=GenerationLimits(max_tokens=3)))
    assert reply.usage.completion == 3
    assert reply.choices[0].reason is FinishReason.LENGTH


@pytest.mark.parametrize("n", [1, 3])
async def test_every_choice_is_answered_and_counted(subject: Subject, n: int) -> None:
    events = await subject.events(subject.request(choices=n, limits=GenerationLimits(max_tokens=8)))
    reply = fold(events)
    assert len(reply.choices) == n
    assert reply.usage.completion == sum(len(choice.tokens) for choice in reply.choices)


async def test_a_prompt_that_does_not_fit_is_refused_before_anything_starts(subject: Subject) -> None:
    with pytest.raises(ContextTooLong):
        await subject.events(subject.request("word " * 6000))


async def test_the_same_seed_says_the_same(subject: Subject) -> None:
    subject.needs_parameters("seed")
    asked = subject.request(
        sampling=sampling(seed=7, temperature=1.5), choices=2, limits=GenerationLimits(max_tokens=16)
    )
    first, second = await subject.reply(asked), await subject.reply(asked)
    assert first.choices == second.choices


async def test_a_stop_string_ends_the_text_and_never_shows(subject: Subject) -> None:
    plain = (
        (await subject.reply(subject.request(sampling=GREEDY, limits=GenerationLimits(max_tokens=30))))
        .choices[0]
        .join_text()
    )
    stop = plain[8:11]
    limits = GenerationLimits(max_tokens=30, stop=(stop,))
    reply = await subject.reply(subject.request(sampling=GREEDY, limits=limits))
    assert reply.choices[0].join_text() == plain[: plain.index(stop)]
    assert (reply.choices[0].reason, reply.choices[0].stop) == (FinishReason.STOP, stop)


async def test_every_token_has_its_logprob_and_its_alternatives(subject: Subject) -> None:
    subject.needs(Feature.LOGPROBS)
    most = min(2, subject.model.capabilities.max_logprobs)
    asked = subject.request(sampling=GREEDY, limits=GenerationLimits(max_tokens=10), logprobs=most)
    tokens = (await subject.reply(asked)).choices[0].tokens
    assert tokens
    for token in tokens:
        assert token.logprob is not None
        assert token.logprob <= 0.0
        assert len(token.top) <= most
        assert all(other.logprob <= 0.0 for other in token.top)


async def test_the_prompt_comes_back_with_its_logprobs(subject: Subject) -> None:
    subject.needs(Feature.PROMPT_LOGPROBS)
    asked = subject.request(prompt_logprobs=1, return_prompt=True, limits=GenerationLimits(max_tokens=1))
    events = await subject.events(asked)
    (prompt,) = [event for event in events if isinstance(event, PromptTokens)]
    assert len(prompt.tokens) == prompt_tokens(events)
    assert prompt.tokens[0].logprob is None
    assert all(token.logprob is not None for token in prompt.tokens[1:])


async def test_a_prompt_of_ids_says_what_its_text_says(subject: Subject) -> None:
    subject.needs(Feature.TOKEN_IDS)
    tokenizer = subject.model.tokenizer
    assert tokenizer is not None
    text = "Once upon a time"
    limits = GenerationLimits(max_tokens=8)
    spelled = GenerateRequest(subject.model.name, text, sampling=GREEDY, limits=limits)
    counted = msgspec.structs.replace(spelled, prompt=tuple(tokenizer.encode(text, special=True)))
    assert ids(await subject.reply(spelled)) == ids(await subject.reply(counted))


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def test_a_schema_binds_the_answer(subject: Subject) -> None:
    if isinstance(subject.model.backend.engine, ScriptedEngine):
        pytest.skip("a script says what it says; it refuses a reply that its request's schema forbids")
    subject.needs(Feature.JSON_SCHEMA)
    for seed in range(4):
        asked = subject.request(
            constraint=JsonSchema(json.dumps(SCHEMA)),
            sampling=sampling(seed=seed, temperature=2.0),
            limits=GenerationLimits(max_tokens=200),
        )
        choice = (await subject.reply(asked)).choices[0]
        assert choice.reason is FinishReason.STOP
        jsonschema_rs.validate(SCHEMA, json.loads(choice.join_text()))


@pytest.mark.parametrize(
    ("constraint", "feature", "fits"),
    [
        (Regex("[a-c]{5}x"), Feature.REGEX, lambda text: len(text) == 6 and text.endswith("x")),  # pyright: ignore
        (StringChoices(("yes", "no")), Feature.CHOICE, lambda text: text in ("yes", "no")),  # pyright: ignore
    ],
)
async def test_a_pattern_binds_the_answer(
    subject: Subject, constraint: Regex | StringChoices, feature: Feature, fits: Callable[[str], bool]
) -> None:
    if isinstance(subject.model.backend.engine, ScriptedEngine):
        pytest.skip("a script says what it says")
    subject.needs(feature)
    asked = subject.request(constraint=constraint, sampling=sampling(temperature=2.0, seed=1))
    assert fits((await subject.reply(asked)).choices[0].join_text())


async def test_a_required_call_is_made_and_its_arguments_follow_the_schema(subject: Subject) -> None:
    if isinstance(subject.model.backend.engine, ScriptedEngine):
        pytest.skip("a script says what it says")
    subject.needs(Feature.TOOLS, Feature.JSON_SCHEMA)
    tool = FunctionTool("make_person", "Make a person", json.dumps(SCHEMA), strict=True)
    prompt = msgspec.structs.replace(
        talk("Make one."), tools=(tool,), tool_choice=ToolChoice("required"), parallel_tool_calls=False
    )
    asked = GenerateRequest(
        subject.model.name,
        prompt,
        sampling=sampling(temperature=2.0, seed=3),
        limits=GenerationLimits(max_tokens=300),
    )
    calls = (await subject.reply(asked)).choices[0].list_calls()
    assert calls
    for call in calls:
        assert call.name == "make_person"
        jsonschema_rs.validate(SCHEMA, json.loads(call.arguments))


async def test_closing_frees_the_engine(subject: Subject) -> None:
    run = await admit(
        subject.model, [subject.request(limits=GenerationLimits(max_tokens=2000, ignore_eos=True))], terms()
    )
    assert await anext(run.batches)
    await run.batches.aclose()
    while subject.model.backend.engine.health().running:  # noqa: ASYNC110 - the engine's thread tells nobody
        await asyncio.sleep(0)
    assert subject.model.backend.engine.health().waiting == 0


def mixed(subject: Subject, number: int) -> GenerateRequest:
    """Thirty-two requests of which no two are alike."""
    can = subject.model.capabilities
    kinds = [
        GREEDY,
        sampling(temperature=1.0, seed=number),
        sampling(temperature=1.3, top_p=0.8, seed=number),
        sampling(temperature=0.9, top_k=5, min_p=0.05, seed=number),
        sampling(temperature=0.7, frequency_penalty=0.5, presence_penalty=0.3, repetition_penalty=1.2, seed=number),
    ]
    texts = ["Hello", "Count to 12.", "Tell me a story.", "What is 3 + 4?", LONG * (1 + number % 4)]
    return subject.request(
        texts[number % len(texts)],
        sampling=kinds[number % len(kinds)],
        limits=GenerationLimits(max_tokens=4 + number),
        logprobs=min(number % 3, can.max_logprobs) if number % 2 and Feature.LOGPROBS in can.features else None,
    )


async def test_thirty_two_at_once_say_what_each_says_alone(subject: Subject) -> None:
    asked = [mixed(subject, number) for number in range(32)]
    together = await asyncio.gather(*(subject.reply(request) for request in asked))
    for request, among_others in zip(asked, together, strict=True):
        assert same(await subject.reply(request), among_others, exact=subject.exact)


async def test_a_refused_request_leaves_the_engine_as_it_was(subject: Subject) -> None:
    with pytest.raises(DragomanError):
        await subject.events(subject.request("word " * 6000))
    assert (await subject.reply(subject.request(limits=GenerationLimits(max_tokens=2)))).usage.completion > 0
