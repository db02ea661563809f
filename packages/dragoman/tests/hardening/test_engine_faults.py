"""Engines that fail in every way: no client hangs, each gets an error in its dialect,
no response stays in progress.

Found with failing plug-ins: exceptions outside `Exception` cut streams without an error
event, caused a bare 500, and left background responses in progress forever.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import cycle, islice, product
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.engines.rollout.executors import Dice
from tests.fuzz.exchange import Request, Response, send_request
from tests.fuzz.judge import check_response
from tests.serving.responses.harness import lifespan

from dragoman import BaseTokenEngine
from dragoman.core.capabilities import Capabilities
from dragoman.core.engine import Health
from dragoman.core.engine_interfaces import EngineInterfaces
from dragoman.core.errors import EngineError, Overloaded, RequestError
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Usage,
)
from dragoman.core.request import GenerateRequest
from dragoman.core.token_engine import Failed, OutputCallback, Rejected, Scheduled, TokenRequest
from dragoman.engines import tiny
from dragoman.engines.rollout_executor import RolloutSampling
from dragoman.launch import build_models
from dragoman.launch.plugin import build_executor_model, build_served_model
from dragoman.pipeline.engine_backends import EventBackend, TokenBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings
from dragoman.store import MemoryStore

TIMEOUT = 0.3
"""Request timeout in seconds, which ends requests of hung engines."""
SOME = 300
MANY = 1_000
EACH = 220
"""Requests to each other kind of engine, which cover all of its faults in most
dialects.
"""


class FatalError(BaseException):
    """An exception that handlers of `Exception` do not catch."""


async def _cancel_inside() -> None:
    """Cancel an inner task that the engine awaits."""
    inner = asyncio.get_running_loop().create_future()
    inner.cancel()
    await inner


async def _hang() -> None:
    await asyncio.Event().wait()


async def _raise_group() -> None:
    raise BaseExceptionGroup("several", [FatalError(), ValueError()])


def _raising(error: Callable[[], BaseException]) -> Callable[[], Any]:
    async def fail() -> None:
        raise error()

    return fail


FAILURES: dict[str, Callable[[], Any]] = {
    "exception": _raising(lambda: Exception("secret detail")),
    "value": _raising(lambda: ValueError("secret detail")),
    "key": _raising(lambda: KeyError("secret detail")),
    "assertion": _raising(AssertionError),
    "recursion": _raising(RecursionError),
    "memory": _raising(MemoryError),
    "os": _raising(lambda: OSError(5, "secret detail")),
    "reset": _raising(ConnectionResetError),
    "timeout": _raising(TimeoutError),
    "stop_iteration": _raising(StopIteration),
    "stop_async_iteration": _raising(StopAsyncIteration),
    "engine": _raising(lambda: EngineError("The engine broke.")),
    "overloaded": _raising(lambda: Overloaded("The engine is full.")),
    "refused": _raising(lambda: RequestError("No such thing.")),
    "base": _raising(lambda: BaseException("secret detail")),
    "bottom": _raising(FatalError),
    "cancelled": _raising(asyncio.CancelledError),
    "cancelled_inside": _cancel_inside,
    "generator_exit": _raising(GeneratorExit),
    "keyboard": _raising(KeyboardInterrupt),
    "system_exit": _raising(lambda: SystemExit(3)),
    "group": _raise_group,
    "hang": _hang,
}
EVENTS: tuple[Event, ...] = (
    Started(3),
    TextDelta(0, "Hello"),
    TextDelta(0, " there"),
    ChoiceFinished(0, FinishReason.STOP),
    Finished(Usage(3, 2)),
)
STRANGE: dict[str, Any] = {
    "again": Started(3),
    "early_end": Finished(Usage(3, 2)),
    "another_choice": TextDelta(7, "x"),
    "choice_below": TextDelta(-1, "x"),
    "no_event": "x",
    "no_text": TextDelta(0, 5),  # pyright: ignore[reportArgumentType]
    "none": None,
    "below_zero": Finished(Usage(3, -2)),
    "no_count": Finished(Usage(3, 2.5)),  # pyright: ignore[reportArgumentType]
    "no_number": Finished(Usage(True, 2)),
    "cached_below_zero": Finished(Usage(3, 2, cached=-1)),
    "reasoning_below_zero": Finished(Usage(3, 2, reasoning=-1)),
}
"""Illegal streams: this event replaces the next one, or the stream ends."""
CALLS = ("at_call", "no_stream", "bad_close", "close_raises")
KINDS = (
    *(f"{kind} {at}" for kind, at in product((*FAILURES, *STRANGE, "ends"), range(5))),
    *(f"{kind} 2" for kind in CALLS),
)


class Failing:
    """An event engine that fails as the prompt specifies: `fault KIND PHASE`, after so
    many events.
    """

    def __init__(self) -> None:
        self.running = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health(running=self.running)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        match = re.search(r"fault (\w+) (\d)", str(request.prompt))
        assert match is not None
        kind = match[1]
        phase = int(match[2])
        if kind == "at_call":
            raise FatalError
        if kind == "no_stream":
            return None  # pyright: ignore[reportReturnType]
        return self._generate(kind, phase)

    async def _generate(self, kind: str, phase: int) -> AsyncGenerator[Event]:
        self.running += 1
        try:
            for number, event in enumerate(EVENTS):
                if number == phase:
                    if kind in FAILURES:
                        await FAILURES[kind]()
                    elif kind == "ends":
                        return
                    elif kind in STRANGE:
                        yield STRANGE[kind]
                    elif kind == "bad_close":
                        raise ValueError
                yield event
                await asyncio.sleep(0)
        finally:
            self.running -= 1
            if kind in ("bad_close", "close_raises"):
                raise FatalError


class FailingTokens:
    """A token engine that fails in each of its calls, as the seed specifies: token ids
    have no words.
    """

    KINDS = (
        "add_bottom",
        "add_cancelled",
        "add_exit",
        "add_value",
        "failed",
        "refused",
        "silent",
        "half",
        "abort",
    )

    def __init__(self) -> None:
        self._kinds = cycle(self.KINDS)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        match next(self._kinds):
            case "add_bottom":
                raise FatalError
            case "add_cancelled":
                raise asyncio.CancelledError
            case "add_exit":
                raise SystemExit(3)
            case "add_value":
                raise ValueError("secret detail")
            case "failed":
                deliver(Scheduled(request.id, 0))
                deliver(Failed(request.id, "The engine broke."))
            case "refused":
                deliver(Rejected(request.id, Overloaded("The engine is full.")))
            case "half":
                deliver(Scheduled(request.id, 0))
            case _:
                pass

    def abort(self, id: str) -> None:
        raise FatalError


ODD_TOKENS = (None, "x", -1, 1.5)


class FailingPlugin(BaseTokenEngine):
    """A plug-in that samples, and fails in each way: before its first token, behind it,
    or by what it yields.
    """

    def __init__(self) -> None:
        super().__init__(tiny.find_bundled_model(), max_model_len=512)
        self._faults = cycle((*product(FAILURES, (0, 1)), *((odd, 1) for odd in ODD_TOKENS)))

    async def generate(self, request: TokenRequest) -> AsyncGenerator[int]:
        kind, phase = next(self._faults)
        for _ in range(phase):
            yield 300
        if kind in FAILURES:
            await FAILURES[kind]()
        yield kind  # pyright: ignore[reportReturnType]
        yield 301


class FailingExecutor(Dice):
    """The inference executor of a trainer that fails in each way."""

    def __init__(self) -> None:
        super().__init__()
        self._faults = cycle(FAILURES)

    async def generate(
        self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling
    ) -> object:
        await FAILURES[next(self._faults)]()
        return None


def _body(path: str, text: str) -> dict[str, Any]:
    match path:
        case "/v1/chat/completions" | "/api/chat":
            return {"messages": [{"role": "user", "content": text}]}
        case "/v1/messages":
            return {"messages": [{"role": "user", "content": text}], "max_tokens": 20}
        case "/v1/responses":
            return {"input": text}
        case "/generate":
            return {"text": text}
        case "/generate_stream":
            return {"inputs": text}
        case _:
            return {"prompt": text}


PATHS = (
    *(
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/generate",
        "/generate_stream",
    ),
    *("/api/chat", "/api/generate"),
)
MODES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *((path, {"stream": stream}) for path in PATHS for stream in (True, False)),
    ("/v1/responses", {"background": True}),
    ("/v1/responses", {"background": True, "stream": True}),
    ("/v1/completions", {"stream": True, "several": True}),
)


def request_of(text: str, path: str, fields: Mapping[str, Any], model: str) -> Request:
    body = {"model": model, **_body(path, text), **fields}
    if body.pop("several", False):
        body["prompt"] = [text, text]
    return Request(
        "POST", path, path, json.dumps(body).encode(), {"content-type": "application/json"}
    )


def models_that_fail() -> tuple[Models, Failing]:
    (place,) = build_models(Settings(model="tiny"), SystemClock()).slots
    assert place.model is not None
    assert isinstance(place.model.backend, TokenBackend)
    backend = replace(place.model.backend, engine=FailingTokens(), embedder=None)
    tokens = replace(
        place.model,
        name="t",
        backend=backend,
        interfaces=EngineInterfaces(),
        aliases=(),
    )
    engine = Failing()
    plugin = build_served_model(FailingPlugin(), Settings(), SystemClock(), own_name="p")
    executor = build_executor_model(
        Settings(), SystemClock(), FailingExecutor(), own_name="x", max_model_len=512
    )
    return Models(
        [ServedModel("e", EventBackend(engine), 4096, 0), tokens, plugin, executor]
    ), engine


@asynccontextmanager
async def server() -> AsyncGenerator[tuple[ASGIApp, Models, Failing]]:
    models, engine = models_that_fail()
    app = build_asgi_app(
        models,
        store=MemoryStore(),
        options=ServingOptions(request_timeout=TIMEOUT, max_background=2_000),
    )
    async with lifespan(app):
        yield app, models, engine


def is_success(response: Response) -> bool:
    """Return whether the client received a complete answer."""
    if response.status != 200:
        return False
    endings = (
        b"[DONE]",
        b"message_stop",
        b"response.completed",
        b'"finish_reason":"stop"',
        b'"generated_text":"',
    )
    failures = (b'"error"', b"response.failed")
    return any(end in response.body for end in endings) and not any(
        word in response.body for word in failures
    )


async def ask(app: ASGIApp, request: Request, gate: asyncio.Semaphore) -> str | None:
    """Send the request, and return a description of what is wrong; None if nothing is."""
    async with gate:
        try:
            response = await send_request(app, request)
            check_response(request, response, failing=True)
            assert b"secret detail" not in response.body, "a detail of the failure"
            if b'"background": true' in request.body and b'"stream": true' not in request.body:
                if response.status == 200:
                    await _check_background(app, json.loads(response.body)["id"])
            elif is_success(response):
                # These faults happen after the last event, or are allowed.
                assert any(kind in request.body for kind in (b"close_raises", b"early_end 4")), (
                    "reported as a success"
                )
        except (Exception, asyncio.CancelledError) as error:
            return f"{type(error).__name__} {error}: {request}"
    return None


async def _check_background(app: ASGIApp, id: str) -> None:
    """Check that the response's event stream ends, and that the response is then
    complete.
    """
    path = f"/v1/responses/{id}"
    followed = Request("GET", "/v1/responses/{id}", path, query=b"stream=true")
    check_response(followed, await send_request(app, followed), failing=True)
    background = await send_request(app, Request("GET", "/v1/responses/{id}", path))
    assert json.loads(background.body)["status"] not in ("queued", "in_progress"), (
        "still in progress"
    )


async def crash(count: int) -> None:
    cases = islice(cycle(product(KINDS, MODES)), 0, None, 7)
    gate = asyncio.Semaphore(32)
    async with server() as (app, models, engine):
        requests: list[Request] = []
        for number, (kind, (path, fields)) in enumerate(islice(cases, count)):
            requests.append(
                request_of(
                    f"fault {kind}", path, fields, {9: "t", 6: "p", 3: "x"}.get(number % 10, "e")
                )
            )
        wrong = [
            found
            for found in await asyncio.gather(*(ask(app, each, gate) for each in requests))
            if found
        ]
        assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])
        assert engine.running == 0
        assert all(model.progress.running == 0 for model in models)
        health = await send_request(app, Request("GET", "/health", "/health"))
        assert health.status == 200


async def test_engine_faults_leave_no_pending_clients_or_responses() -> None:
    await crash(SOME)


@pytest.mark.parametrize("model", ["t", "p", "x"])
async def test_plugin_and_executor_faults_leave_no_pending_clients(model: str) -> None:
    """Exceptions outside `Exception` used to end the task silently."""
    gate = asyncio.Semaphore(32)
    async with server() as (app, models, _):
        requests = [request_of("a", *mode, model) for mode in islice(cycle(MODES), EACH)]
        wrong = [
            found
            for found in await asyncio.gather(*(ask(app, each, gate) for each in requests))
            if found
        ]
        assert not wrong, f"{len(wrong)} of {EACH}:\n" + "\n".join(wrong[:20])
        assert all(each.progress.running == 0 for each in models)


@pytest.mark.parametrize(
    "kind", [kind for kind, event in STRANGE.items() if isinstance(event, Finished)]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_engine_invalid_token_counts_return_error(kind: str, stream: bool) -> None:
    """Usage may be billed: -2 completion tokens of a plug-in used to be passed on."""
    async with server() as (app, _, _):
        request = request_of(f"fault {kind} 3", "/v1/chat/completions", {"stream": stream}, "e")
        response = await send_request(app, request)
    check_response(request, response, failing=True)
    assert not is_success(response)
    assert (response.status, b'"error"' in response.body) == (200 if stream else 500, True)


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_yielding_none_returns_error(stream: bool) -> None:
    """None used to be treated as the end of an answer at a stop string."""
    async with server() as (app, _, _):
        for phase in range(5):
            request = request_of(
                f"fault none {phase}", "/v1/chat/completions", {"stream": stream}, "e"
            )
            response = await send_request(app, request)
            check_response(request, response, failing=True)
            assert not is_success(response)


@pytest.mark.long
async def test_engine_faults_in_1000_crashes_leave_no_pending_clients() -> None:
    await crash(MANY)
