"""The engine with upstreams that reject requests, fail, disconnect and hang."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
from tests.engines.upstream.relays import build_engine
from tests.engines.upstream.stub_server import Handle, Pieces, far_server

from dragoman.core.errors import (
    ContextTooLong,
    DragomanError,
    EngineError,
    EngineTimeout,
    ModelNotFound,
    NotFound,
    Overloaded,
    RateLimited,
    RequestError,
)
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Usage,
)
from dragoman.core.message import Message, Role, Text
from dragoman.core.request import Conversation, GenerateRequest, GenerationLimits
from dragoman.engines.upstream import Upstream, UpstreamEngine
from tests.loopback import find_free_port

ASK = GenerateRequest("m", Conversation((Message(Role.USER, (Text("hi"),)),)))
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
HELLO = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STREAM = {"content-type": "text/event-stream"}


def streaming(*pieces: bytes | Exception | None) -> httpx2.Response:
    return httpx2.Response(200, headers=STREAM, stream=Pieces(*pieces))


def good(_: httpx2.Request) -> httpx2.Response:
    return streaming(ROLE, HELLO, END)


@asynccontextmanager
async def serving(handle: Handle, *names: str, **config: Any) -> AsyncGenerator[UpstreamEngine]:
    """Yield an engine.

    names: names of the upstreams, which are the first segments of their paths.
    """
    async with far_server(healthy(handle)) as address:
        upstreams = tuple(Upstream(f"{address}/{name}/v1", key="sk-up") for name in names or ("a",))
        engine = build_engine(kind="compatible", upstreams=upstreams, **config)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()


def healthy(handle: Handle) -> Handle:
    """Answer health checks, and pass other requests to `handle`."""

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        return (
            httpx2.Response(200, json={"data": []}) if request.method == "GET" else handle(request)
        )

    return answer


async def collect_events(engine: UpstreamEngine) -> list[Event]:
    return [event async for event in engine.generate(ASK)]


async def test_generate_forwards_events_as_received() -> None:
    async with (
        serving(lambda _: streaming(ROLE, HELLO, None)) as engine,
        aclosing(engine.generate(ASK)) as events,
    ):
        assert [await anext(events), await anext(events)] == [Started(None), TextDelta(0, "Hello")]
        assert engine.health().running == 1
        await events.aclose()
        assert engine.health().running == 0


async def test_generate_max_tokens_0_prefills_and_emits_no_text() -> None:
    """Chat upstreams reject a limit of 0. Codex's `generate: false` and Anthropic's
    `max_tokens: 0` have it.
    """
    bodies: list[bytes] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.content)
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}\n\n'  # noqa: E501
        return streaming(ROLE, HELLO, END.replace(b"data: [DONE]\n\n", usage))

    async with serving(handle) as engine:
        request = msgspec.structs.replace(ASK, limits=GenerationLimits(max_tokens=0))
        events = [event async for event in engine.generate(request)]
    assert msgspec.json.decode(bodies[0])["max_tokens"] == 1
    assert not any(isinstance(event, TextDelta) for event in events)
    assert events[-2:] == [ChoiceFinished(0, FinishReason.LENGTH), Finished(Usage(9, 0))]


async def test_generate_close_disconnects_upstream() -> None:
    body = Pieces(ROLE, None)
    async with serving(lambda _: httpx2.Response(200, headers=STREAM, stream=body)) as engine:
        async with aclosing(engine.generate(ASK)) as events:
            await anext(events)
        while not body.closed:  # noqa: ASYNC110 - the limit of the test ends it
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (
            400,
            {"error": {"message": "Bad n.", "param": "n", "code": "invalid_value"}},
            RequestError,
        ),
        (422, {"detail": [{"loc": ["body", "n"]}]}, RequestError),
        (404, {"error": {"message": "No such model.", "code": "model_not_found"}}, ModelNotFound),
        (404, {"detail": "Not Found"}, NotFound),
        (429, {"error": "slow down"}, RateLimited),
        (500, {"error": {"message": "boom"}}, EngineError),
        (503, {"message": "full", "code": 503}, Overloaded),
        (504, {}, EngineTimeout),
    ],
)
async def test_upstream_error_status_maps_to_error_type(
    status: int, body: object, kind: type[DragomanError]
) -> None:
    async with serving(
        lambda _: httpx2.Response(status, json=body, headers={"retry-after": "7"})
    ) as engine:
        with pytest.raises(DragomanError) as found:
            await collect_events(engine)
    assert type(found.value) is kind
    assert (found.value.retry_after == 7) is (status == 429 or status >= 500)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
async def test_upstream_failure_message_is_only_logged(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    error = {"error": {"message": "boom secret", "param": None}}
    async with serving(lambda _: httpx2.Response(status, json=error)) as engine:
        with pytest.raises(DragomanError) as found:
            await collect_events(engine)
    own_words = {
        503: "The upstream is overloaded; retry later.",
        504: "The upstream did not answer in time.",
    }
    assert found.value.message == own_words.get(status, f"The upstream failed (HTTP {status}).")
    assert "boom secret" in caplog.text


@pytest.mark.parametrize("error", ['"boom secret"', '{"message": "boom secret"}'])
async def test_upstream_stream_error_message_is_hidden(error: str) -> None:
    async with serving(
        lambda _: streaming(b'data: {"error": ' + error.encode() + b"}\n\n")
    ) as engine:
        with pytest.raises(EngineError) as found:
            await collect_events(engine)
    assert "secret" not in found.value.message


async def test_upstream_request_error_keeps_message_and_param() -> None:
    error = {"error": {"message": "Bad n.", "param": "n", "code": "invalid_value"}}
    async with serving(lambda _: httpx2.Response(400, json=error)) as engine:
        with pytest.raises(RequestError) as found:
            await collect_events(engine)
    assert (found.value.message, found.value.param, found.value.code) == (
        "Bad n.",
        "n",
        "invalid_value",
    )


async def test_upstream_context_error_raises_context_too_long() -> None:
    message = (
        "This model's maximum context length is 4096 tokens. However, your prompt has at "
        "least 6001 tokens."
    )
    async with serving(
        lambda _: httpx2.Response(400, json={"error": {"message": message}})
    ) as engine:
        with pytest.raises(ContextTooLong) as found:
            await collect_events(engine)
    assert (found.value.limit, found.value.prompt, found.value.at_least) == (4096, 6001, True)


@pytest.mark.parametrize("status", [301, 401, 403])
async def test_upstream_authentication_failure_raises_engine_error(status: int) -> None:
    body = {"error": {"message": "Incorrect API key provided: sk-up"}}
    async with serving(lambda _: httpx2.Response(status, json=body)) as engine:
        with pytest.raises(EngineError) as found:
            await collect_events(engine)
    assert "sk-up" not in found.value.message


@pytest.mark.parametrize(
    "pieces",
    [
        (ROLE, HELLO),
        (ROLE, HELLO, b"data: [DONE]\n\n"),
        (ROLE, HELLO, httpx2.ReadError("reset")),
        (ROLE, b"data: {not json\n\n"),
        (ROLE, b'data: {"error":{"message":"out of memory"}}\n\n'),
        (ROLE, b'data: {"choices":[{"index":4,"delta":{}}]}\n\n'),
    ],
)
async def test_interrupted_stream_raises_engine_error(pieces: tuple[bytes, ...]) -> None:
    async with serving(lambda _: streaming(*pieces)) as engine:
        with pytest.raises(EngineError):
            await collect_events(engine)
        assert engine.health().running == 0


async def test_upstream_read_timeout_raises_engine_timeout() -> None:
    async with serving(lambda _: streaming(ROLE, None), read_timeout=0.01) as engine:
        with pytest.raises(EngineTimeout):
            await collect_events(engine)


async def test_non_streamed_response_is_read() -> None:
    full = {
        "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3},
    }
    async with serving(lambda _: httpx2.Response(200, json=full)) as engine:
        assert TextDelta(0, "Hi") in await collect_events(engine)


def failing_first(first: Callable[[], httpx2.Response | None], hosts: list[str]) -> Handle:
    def handle(request: httpx2.Request) -> httpx2.Response | None:
        hosts.append(request.url.path.split("/")[1])
        return first() if len(hosts) == 1 else good(request)

    return handle


@pytest.mark.parametrize(
    "first", [lambda: None, lambda: httpx2.Response(503), lambda: httpx2.Response(429)]
)
async def test_request_without_response_is_retried_on_other_upstream(
    first: Callable[[], httpx2.Response],
) -> None:
    hosts: list[str] = []
    async with serving(failing_first(first, hosts), "a", "b") as engine:
        assert isinstance((await collect_events(engine))[-1], Finished)
    assert sorted(hosts) == ["a", "b"]


async def test_unreachable_upstream_is_replaced_by_other_upstream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = f"http://127.0.0.1:{find_free_port()}/v1"
    async with far_server(healthy(good)) as address:
        # Which one is preferred depends on the prompt and on the ports.
        number = 0
        while dead not in caplog.text:
            number += 1
            engine = build_engine(
                kind="compatible", upstreams=(Upstream(dead), Upstream(f"{address}/v1"))
            )
            await engine.start()
            prompt = Conversation((Message(Role.USER, (Text(f"hi {number}"),)),))
            events = [
                event
                async for event in engine.generate(msgspec.structs.replace(ASK, prompt=prompt))
            ]
            assert isinstance(events[-1], Finished)
            await engine.stop()


async def test_request_is_not_retried_after_first_event() -> None:
    hosts: list[str] = []
    handle = failing_first(lambda: streaming(ROLE, httpx2.ReadError("reset")), hosts)
    async with serving(handle, "a", "b") as engine:
        with pytest.raises(EngineError):
            await collect_events(engine)
    assert len(hosts) == 1


async def test_stale_connection_is_retried_on_same_upstream() -> None:
    hosts: list[str] = []
    async with serving(failing_first(lambda: None, hosts)) as engine:
        assert isinstance((await collect_events(engine))[-1], Finished)
    assert hosts == ["a", "a"]


async def test_health_follows_upstream_reachability() -> None:
    woken = asyncio.Event()
    port = find_free_port()

    async def sleep(_: float) -> None:
        await woken.wait()

    engine = build_engine(f"http://127.0.0.1:{port}", kind="compatible", sleep=sleep)
    await engine.start()
    with pytest.raises(Overloaded):
        await collect_events(engine)
    assert not engine.health().ready
    async with far_server(healthy(good), port):
        woken.set()
        while not engine.health().ready:  # noqa: ASYNC110 - there is no event for the next check
            await asyncio.sleep(0)
        woken.clear()
        await engine.stop()


async def test_stop_fails_running_requests() -> None:
    async with serving(lambda _: streaming(ROLE, None)) as engine:
        answer = asyncio.create_task(collect_events(engine))
        while not engine.health().running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await engine.stop()
        with pytest.raises(EngineError):
            await answer


async def test_api_key_is_sent_upstream_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    keys: list[str] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers["authorization"])
        return httpx2.Response(500, json={})

    with caplog.at_level(logging.DEBUG):
        async with serving(handle) as engine:
            with pytest.raises(EngineError):
                await collect_events(engine)
    assert keys == ["Bearer sk-up"]
    assert "sk-up" not in caplog.text
