"""Token counts that an upstream does not report: they are null or an estimate with a
warning, and are charged to the key, also if the client leaves first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, asynccontextmanager
from itertools import groupby
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.upstream.relays import build_engine
from tests.engines.upstream.stub_server import Pieces, far_server
from tests.http.wire import Wire
from tests.http.wire import serving as serving_tcp
from tests.serving.harness import FixedClock, SequentialIds
from tests.serving.responses.harness import lifespan
from tests.serving.test_tenancy import tenant

from dragoman import BaseEngine
from dragoman.core.capabilities import Capabilities
from dragoman.core.errors import EngineError
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.request import GenerateRequest
from dragoman.engines.upstream import KINDS
from dragoman.pipeline.admit import admit
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.request_metrics import ModelMetrics
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.call_observer import CallObserver
from dragoman.serving.recent_requests import RecentRequests
from dragoman.serving.request_log import RequestLogLine
from dragoman.store import MemoryStore
from dragoman.testing.engine_under_test import build_conversation, build_terms

GENERATING = [name for name, kind in KINDS.items() if kind.generates]
WORDS = [f"w{number:03} " for number in range(900)]
TEXT = "".join(WORDS)
ASK: dict[str, Any] = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": [{"role": "user", "content": f"Say {TEXT}"}],
    },
    "/v1/messages": {
        "model": "m",
        "messages": [{"role": "user", "content": f"Say {TEXT}"}],
        "max_tokens": 4000,
    },
    "/v1/responses": {"model": "m", "input": f"Say {TEXT}", "store": False},
    "/v1/completions": {"model": "m", "prompt": f"Say {TEXT}", "max_tokens": 4000},
    "/api/chat": {
        "model": "m",
        "messages": [{"role": "user", "content": f"Say {TEXT}"}],
    },
}


def encode_events(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n"
        % (event.get("type", "message").encode(), json.dumps(event).encode())
        for event in events
    )


def build_chat(pieces: Iterable[str], *, counts: bool) -> list[bytes]:
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    if counts:
        end["usage"] = {"prompt_tokens": 900, "completion_tokens": 900, "total_tokens": 1800}
    return [
        *(encode_events({"choices": [{"index": 0, "delta": {"content": p}}]}) for p in pieces),
        encode_events(end) + b"data: [DONE]\n\n",
    ]


def build_messages(pieces: Iterable[str], *, counts: bool) -> list[bytes]:
    start_usage = {"input_tokens": 900, "output_tokens": 1} if counts else {}
    text = {"type": "text", "text": ""}
    delta: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    if counts:
        delta["usage"] = {"output_tokens": 900}
    return [
        encode_events(
            {"type": "message_start", "message": {"usage": start_usage}},
            {"type": "content_block_start", "index": 0, "content_block": text},
        ),
        *(
            encode_events(
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "text_delta", "text": piece},
                }
            )
            for piece in pieces
        ),
        encode_events({"type": "content_block_stop", "index": 0}, delta, {"type": "message_stop"}),
    ]


def build_responses(pieces: Iterable[str], *, counts: bool) -> list[bytes]:
    texts = list(pieces)
    item = {"type": "message", "id": "msg_1", "role": "assistant"}
    content = [{"type": "output_text", "text": "".join(texts)}]
    done = {**item, "status": "completed", "content": content}
    response: dict[str, Any] = {"id": "resp_1", "status": "completed", "output": [done]}
    if counts:
        response["usage"] = {"input_tokens": 900, "output_tokens": 900, "total_tokens": 1800}
    return [
        encode_events(
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
        ),
        *(
            encode_events(
                {
                    "type": "response.output_text.delta",
                    "output_index": 0,
                    "content_index": 0,
                    "delta": text,
                }
            )
            for text in texts
        ),
        encode_events(
            {"type": "response.output_item.done", "output_index": 0, "item": done},
            {"type": "response.completed", "response": response},
        ),
    ]


def build_gemini(pieces: Iterable[str], *, counts: bool) -> list[bytes]:
    end: dict[str, Any] = {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}
    if counts:
        end["usageMetadata"] = {"promptTokenCount": 900, "candidatesTokenCount": 900}
    return [
        *(encode_events({"candidates": [{"content": {"parts": [{"text": p}]}}]}) for p in pieces),
        encode_events(end),
    ]


BUILDERS = {
    "anthropic": build_messages,
    "responses": build_responses,
    "gemini": build_gemini,
}


@asynccontextmanager
async def serving(
    kind: str, pieces: Iterable[str] = WORDS, *, counts: bool = False, hangs: bool = False
) -> AsyncGenerator[Wire]:
    """Run a server with a key of 2,000 tokens a day in front of an upstream.

    counts: the upstream reports usage.
    hangs: the upstream never sends the end of its answer.
    """
    packets = BUILDERS.get(kind, build_chat)(pieces, counts=counts)
    stream = Pieces(*packets[:-1], None) if hangs else Pieces(*packets)

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)

    async with far_server(answer) as address:
        engine = build_engine(address, kind=kind)
        app = build_asgi_app(
            Models([ServedModel("m", EventBackend(engine), 99_999, 1_700_000_000)]),
            clock=FixedClock(),
            ids=SequentialIds(),
            store=MemoryStore(),
            tenants={
                "a": tenant("a", tokens_per_day=2000),
                "root": tenant("root", role="admin"),
            },
        )
        async with lifespan(app), serving_tcp(app) as wire:
            yield wire


def connect(wire: Wire, key: str = "a") -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{wire.port}",
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    )


async def leave_after(wire: Wire, path: str, body: dict[str, Any], last: str) -> int:
    """Stream an answer, and leave when its text has arrived. Return the status."""
    async with (
        connect(wire) as client,
        client.stream("POST", path, json=body | {"stream": True}) as answer,
    ):
        received = ""
        async for text in answer.aiter_text():
            received += text
            if last in received:
                break
    await wire.wait_until_closed()
    return answer.status_code


async def read_counts(wire: Wire) -> dict[str, float]:
    """Return the counters of tokens by their names and labels."""
    async with connect(wire, "root") as client:
        lines = (await client.get("/metrics")).text.splitlines()
    pairs = [line.rpartition(" ") for line in lines if "_tokens_total{" in line]
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("way", ["whole", "stream", "left"])
@pytest.mark.parametrize("kind", GENERATING)
async def test_daily_budget_holds_behind_every_upstream_kind(kind: str, way: str, counts: bool):
    path = "/v1/chat/completions"
    async with serving(kind, counts=counts, hangs=way == "left") as wire:
        statuses: list[int] = []
        for _ in range(6):
            if way == "left":
                statuses.append(await leave_after(wire, path, ASK[path], WORDS[-1].strip()))
                continue
            async with connect(wire) as client:
                body = ASK[path] | {"stream": way == "stream"}
                statuses.append((await client.post(path, json=body)).status_code)
        assert statuses[2:] == [429] * 4
        counted = await read_counts(wire)
        generated = [value for name, value in counted.items() if "generation_tokens" in name]
        assert len(generated) == 2, "of the model and of the key"
        assert min(generated) >= statuses.count(200) * len(TEXT) / 8


@pytest.mark.parametrize("path", ASK)
async def test_daily_budget_holds_for_disconnected_clients(path: str):
    async with serving("compatible", hangs=True) as wire:
        statuses = [await leave_after(wire, path, ASK[path], WORDS[-1].strip()) for _ in range(3)]
        assert (statuses[0], statuses[2]) == (200, 429)
        async with connect(wire) as client:
            refused = (await client.post(path, json=ASK[path])).json()
    assert "quota" in json.dumps(refused)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", GENERATING)
async def test_daily_budget_holds_when_stop_string_matches(kind: str, stream: bool):
    path = "/v1/chat/completions"
    async with serving(kind, [*WORDS, "END", "MARK", " x"]) as wire, connect(wire) as client:
        body = ASK[path] | {"stop": ["ENDMARK"], "stream": stream}
        statuses = [(await client.post(path, json=body)).status_code for _ in range(6)]
    assert statuses[2:] == [429] * 4


def read_usage(path: str, answer: httpx2.Response, *, stream: bool) -> dict[str, Any]:
    """Return the last counts of an answer."""
    if path == "/api/chat":
        return json.loads(answer.text.splitlines()[-1])
    if not stream:
        return answer.json()["usage"]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    found = [event.get("response", event).get("usage") for event in events]
    return [usage for usage in found if usage][-1]


OUTPUT_FIELDS = {"/v1/messages": "output_tokens", "/v1/responses": "output_tokens"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ASK)
@pytest.mark.parametrize("kind", ["compatible", "anthropic", "responses"])
async def test_unreported_usage_is_estimate_with_warning(kind: str, path: str, stream: bool):
    if path == "/v1/completions" and kind != "compatible":
        pytest.skip("this API has no raw prompts")
    pieces = ["One ", "two ", "three."]
    body = {**ASK[path], "stream": stream}
    if stream and path in ("/v1/chat/completions", "/v1/completions"):
        body["stream_options"] = {"include_usage": True}
    async with serving(kind, pieces) as wire, connect(wire) as client:
        answer = await client.post(path, json=body)
    usage = read_usage(path, answer, stream=stream)
    if path == "/api/chat":
        assert not usage.keys() & {"prompt_eval_count", "eval_count"}
    else:
        output = usage[OUTPUT_FIELDS.get(path, "completion_tokens")]
        assert output == -(-len("".join(pieces)) // 4)
        prompt = usage.get("input_tokens", usage.get("prompt_tokens"))
        assert prompt is not None
        assert prompt > 900
    if not stream:
        assert "usage is an estimate" in answer.headers["x-dragoman-warnings"]
    elif path != "/api/chat":
        assert "usage is an estimate" in answer.text.partition(": dragoman_warnings ")[2]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_continuous_usage_without_counts_is_null_until_end(path: str):
    body = ASK[path] | {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    async with serving("compatible", ["One ", "two"]) as wire, connect(wire) as client:
        lines = (await client.post(path, json=body)).text.splitlines()
    usages = [json.loads(line[6:])["usage"] for line in lines if line[:7] == "data: {"]
    assert usages[:-1] == [None] * (len(usages) - 1)
    assert usages[-1]["completion_tokens"] == 2


async def test_message_start_output_count_is_not_the_total():
    """Servers that send usage only at the start have not counted the output."""
    packets = build_messages(["One two three four."], counts=True)
    packets[-1] = packets[-1].replace(b', "usage": {"output_tokens": 900}', b"")

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, stream=Pieces(*packets)
        )

    async with far_server(answer) as address:
        engine = build_engine(address, kind="anthropic")
        model = ServedModel("m", EventBackend(engine), 4096, 1_700_000_000)
        await engine.start()
        request = GenerateRequest("m", prompt=build_conversation("Hi"))
        run = await admit(model, [request], build_terms())
        events = [event async for batch in run.batches for event in batch]
        await engine.stop()
    assert isinstance(events[-1], Finished)
    assert events[-1].usage == Usage(900, 5, is_estimate=True)


class RepeatingEngine(BaseEngine):
    """Yields the same events for each request."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__()
        self._events = events

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        del request
        for event in self._events:
            yield event


tokens = st.lists(st.just(Token(5, "x")), max_size=2).map(tuple)
texts = st.text(max_size=40)
counts = st.none() | st.integers(0, 50)
prompt_counts = st.none() | st.integers(1, 50)


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    """Draw an answer whose engine reports some, wrong or no counts."""
    events: list[Event] = [Started(draw(prompt_counts))]
    for _ in range(draw(st.integers(0, 5))):
        match draw(st.sampled_from(("text", "reasoning", "call"))):
            case "text":
                events.append(TextDelta(0, draw(texts), draw(tokens)))
            case "reasoning":
                events.append(ReasoningDelta(0, draw(texts), draw(tokens)))
            case _:
                events.append(ToolCallStart(0, "call_1", "f" + draw(texts), draw(tokens)))
                events += [ToolCallDelta(0, draw(texts), draw(tokens))]
    events.append(ChoiceFinished(0, FinishReason.STOP))
    return [*events, Finished(Usage(draw(prompt_counts), draw(counts)))]


def join_text(events: list[Event]) -> str:
    return "".join(
        event.text
        if isinstance(event, TextDelta | ReasoningDelta)
        else event.arguments
        if isinstance(event, ToolCallDelta)
        else event.name
        if isinstance(event, ToolCallStart)
        else ""
        for event in events
    )


async def observe_until(events: list[Event], left_after: int) -> tuple[RequestLogLine, list[Event]]:
    """Consume the first batches of an answer; return its record and their events."""
    model = ServedModel("m", EventBackend(RepeatingEngine(events)), 4096, 1_700_000_000)
    run = await admit(model, [GenerateRequest("m", prompt="x" * 400)], build_terms())
    line = RequestLogLine(0.0, "r", "/v1/completions", "m")
    observer = CallObserver(line, None, None, lambda: 0.0)
    observer.counts = run.counts
    run.batches.add_stage(observer)
    delivered: list[Event] = []
    async with aclosing(run.batches) as batches:
        while left_after and (batch := await anext(batches, None)) is not None:
            left_after -= 1
            delivered += batch
    return line, delivered


async def test_recent_request_running_has_tokens_of_its_text():
    texts = [TextDelta(0, "four words of text "), TextDelta(0, "and some more of them")]
    events: list[Event] = [
        Started(3),
        *texts,
        ChoiceFinished(0, FinishReason.STOP),
        Finished(Usage(3, None)),
    ]
    model = ServedModel("m", EventBackend(RepeatingEngine(events)), 4096, 1_700_000_000)
    run = await admit(model, [GenerateRequest("m", prompt="x")], build_terms())
    recent = RecentRequests().add(RequestLogLine(0.0, "r", "/v1/completions", "m"))
    observer = CallObserver(recent.line, None, None, lambda: 0.0, recent=recent)
    observer.record_counts(run.counts)
    run.batches.add_stage(observer)
    counts: list[int] = []
    async with aclosing(run.batches) as batches:
        async for _ in batches:
            counts.append(recent.output_tokens)
    assert counts == [0, 5, 10, 10, 10]
    assert (recent.output_tokens, recent.counts) == (10, None)


@given(answers(), st.integers(1, 20))
def test_charge_covers_text_of_any_stream_left_anywhere(events: list[Event], left_after: int):
    line, delivered = asyncio.run(observe_until(events, left_after))
    text = join_text(delivered)
    varied = len([run for run, _ in groupby(text)])
    assert line.output_tokens >= max((varied - 24) / 8, len(text) / 128)
    assert line.prompt_tokens


class QueueingEngine(BaseEngine):
    """An engine that answers its first request and keeps all others queued, until they
    fail.

    expected: number of requests after which `has_all` is set.
    """

    capabilities = Capabilities(has_one_choice=True)

    def __init__(self, expected: int) -> None:
        super().__init__()
        self._missing = expected
        self._is_first = True
        self.has_all = asyncio.Event()
        self.fails = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        del request
        is_first = self._is_first
        self._is_first = False
        self._missing -= 1
        if not self._missing:
            self.has_all.set()
        if not is_first:
            await self.fails.wait()
            raise EngineError("The engine failed.")
        yield Started(None)
        yield TextDelta(0, "x" * 400)
        yield ChoiceFinished(0, FinishReason.STOP)
        yield Finished(Usage())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("prompts", "choices"), [(2, 1), (1, 2), (2, 2)])
async def test_call_ended_while_part_queued_is_charged(prompts: int, choices: int, fails: bool):
    engine = QueueingEngine(prompts * choices)
    model = ServedModel("m", EventBackend(engine), 4096, 1_700_000_000)
    request = GenerateRequest("m", prompt="x" * 400, choices=choices)
    models = Models([model])
    meters = ModelMetrics(models, lambda: 0.0)
    run = await admit(model, [request] * prompts, build_terms(), meters)
    line = RequestLogLine(0.0, "r", "/v1/completions", "m")
    observer = CallObserver(line, None, None, lambda: 0.0)
    observer.counts = run.counts
    run.batches.add_stage(observer)
    waiting = asyncio.create_task(anext(run.batches))
    await engine.has_all.wait()
    assert not waiting.done()
    if fails:
        engine.fails.set()
    else:
        waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (line.prompt_tokens, line.output_tokens) == (100, 100)
    assert (line.error == "cancelled") is not fails
    ((_, (stats,)),) = meters
    assert (stats.prompt_tokens, stats.generation_tokens) == (100, 100)
