"""Both delivery paths of a response's tokens send the same bytes, for any output of an
engine and any client.

The first path resumes the response's task for every batch and calls ASGI's `send`; the
second renders a batch in the loop iteration after the engine's step, and writes it to
the connection if that is writable.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Scope
from tests.http.wire import Wire, answers, serving

from dragoman.constraints.bounded_compiler import BoundedCompiler
from dragoman.core.capabilities import Capabilities, Feature
from dragoman.core.engine import Health
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
from dragoman.core.token_engine import (
    Ended,
    Failed,
    OutputCallback,
    Sampled,
    Scheduled,
    TokenLogprob,
    TokenOutput,
    TokenRequest,
)
from dragoman.dialects.interfaces import Profile
from dragoman.engines import tiny
from dragoman.engines.base_engine import BaseEngine
from dragoman.http import asgi_extensions
from dragoman.parsers import registry
from dragoman.pipeline.detokenizer import Vocabulary
from dragoman.pipeline.engine_backends import EventBackend, TokenBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.output_formats import OutputFormats
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.render import Renderer
from dragoman.prompts.template_loader import load_template
from dragoman.serving.app import build_asgi_app
from dragoman.serving.serving_options import ServingOptions
from dragoman.serving.stream_keepalive import StreamTimeouts
from dragoman.store import MemoryStore
from tests.virtual_time import run_in_virtual_time

from .harness import FixedClock, SequentialIds, load_tiny_tokenizer, scope

TOKENIZER = load_tiny_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)
TEMPLATE = load_template(tiny.find_bundled_model())
assert TEMPLATE is not None
RENDERER = Renderer(TEMPLATE, TOKENIZER)


class SteppedEngine:
    """An engine whose steps the test runs."""

    capabilities = Capabilities(
        frozenset(Feature), frozenset({"max_tokens", "stop", "temperature"})
    )

    def __init__(self) -> None:
        self.live: dict[str, OutputCallback] = {}
        self.names: list[str] = []
        self.aborted: list[str] = []

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        self.live[request.id] = deliver
        self.names.append(request.id)

    def abort(self, id: str) -> None:
        if self.live.pop(id, None) is not None:
            self.aborted.append(id)

    def deliver(self, output: TokenOutput) -> None:
        if output.id in self.live:
            deliver = self.live[output.id]
            if isinstance(output, Ended | Failed):
                del self.live[output.id]
            deliver(output)

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()


PATIENT = StreamTimeouts(headers=3600, admitted_headers=3600)
"""On a busy machine a keepalive would come before the first token of either delivery."""


def build_app(
    engine: SteppedEngine, *, with_metrics: bool = False, timeouts: StreamTimeouts = PATIENT
) -> ASGIApp:
    backend = TokenBackend(
        engine, TOKENIZER, VOCABULARY, BoundedCompiler(TOKENIZER, [0]), frozenset({0}), RENDERER
    )
    added = TOKENIZER.special_tokens.keys()
    reasoning = registry.find_reasoning_format("qwen3", added)
    tools = registry.find_tool_format("hermes", added)
    model = ServedModel("m", backend, 4096, 1_700_000_000, formats=OutputFormats(reasoning, tools))
    options = ServingOptions(
        profile=Profile.VLLM, enable_per_request_metrics=with_metrics, timeouts=timeouts
    )
    return build_asgi_app(
        Models([model]),
        options=options,
        clock=FixedClock(),
        ids=SequentialIds(),
        store=MemoryStore(),
    )


@dataclass
class Client:
    """A connection.

    direct: whether its server has the extension.
    can_write: whether the client keeps up, in turn.
    calls: the names of the methods that its server has called.
    """

    body: bytes
    direct: bool
    turns: list[bool]
    sent: list[bytes] = field(default_factory=list[bytes])
    statuses: list[int] = field(default_factory=list[int])
    n_direct: int = 0
    calls: list[str] = field(default_factory=list[str])
    started: bool = False
    _write_checks: int = 0

    @property
    def can_respond(self) -> bool:
        return not self.started and (not self.turns or self.turns[0])

    @property
    def can_write(self) -> bool:
        self._write_checks += 1
        return self.started and (not self.turns or self.turns[self._write_checks % len(self.turns)])

    def write(self, body: bytes) -> None:
        self.calls.append("write")
        self.n_direct += 1
        self.sent.append(body)

    def begin(self, status: int, _: object) -> None:
        self.calls.append("begin")
        self.started = True
        self.statuses.append(status)

    def respond(self, status: int, _: object, body: bytes) -> None:
        self.started = True
        self.statuses.append(status)
        self.sent.append(body)

    def hold(self, body: bytes) -> None:
        self.calls.append("hold")
        self.n_direct += 1
        self.sent.append(body)

    def flush(self) -> None:
        self.calls.append("flush")

    def watch(self, _: Callable[[], object] | None, /) -> None: ...

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if self.turns and not self.turns[len(self.sent) % len(self.turns)]:
            await asyncio.sleep(0)
        if message["type"] == "http.response.start":
            self.started = True
            self.statuses.append(message["status"])
        else:
            self.sent.append(message["body"])


Output = Callable[[str], TokenOutput]
Step = tuple[list[tuple[int, Output]], int]
"""The outputs of one delivery, each with the number of its choice; and loop iterations
until the next delivery.
"""

PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Hi"}],
        "n": 2,
        "logprobs": True,
        "store": True,
    },
    "/v1/completions": {"prompt": "Hi", "n": 2, "stop": ["the"]},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 100,
        "stop_sequences": ["the"],
    },
    "/v1/responses": {"input": "Hi", "store": True},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"prompt": "Hi", "options": {"stop": ["the"]}},
}


async def respond(
    path: str,
    steps: list[Step],
    *,
    stream: bool,
    direct: bool,
    turns: list[bool],
    with_metrics: bool = False,
    **fields: Any,
) -> tuple[Client, SteppedEngine]:
    """Send one request; return the connection and the engine.

    with_metrics: the server reports per-request metrics.
    """
    engine = SteppedEngine()
    body = {"model": "m", "stream": stream, **PATHS[path], **fields}
    client = Client(json.dumps(body).encode(), direct, turns)
    request_scope = scope(path)
    extensions: dict[str, object] = {asgi_extensions.DISCONNECT_EXTENSION: client.watch}
    if direct:
        extensions[asgi_extensions.DIRECT_WRITE_EXTENSION] = client
    request_scope["extensions"] = extensions
    task = asyncio.create_task(
        cast(Any, build_app(engine, with_metrics=with_metrics))(
            request_scope, client.receive, client.send
        )
    )
    while not engine.live and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    for outputs, pause in steps:
        for choice, build in outputs:
            engine.deliver(build(engine.names[choice % len(engine.names)]))
        for _ in range(pause):
            await asyncio.sleep(0)
    for name in list(engine.live):
        engine.deliver(Ended(name, FinishReason.LENGTH))
    await task
    return client, engine


WORDS = TOKENIZER.encode("Here is the answer: a fox, and 𝄞 é\u2028 <tag>.", special=False)
MARKERS = TOKENIZER.encode("<think></think><tool_call></tool_call>", special=True)


def build_sampled(token: Any) -> Callable[[str], TokenOutput]:
    return lambda id: Sampled(id, token)


def build_scored(token: int) -> Callable[[str], TokenOutput]:
    return lambda id: Sampled(id, token, TokenLogprob(-0.5, 1, ((token, -0.5),)))


def build_end(id: str) -> TokenOutput:
    return Ended(id, FinishReason.STOP, 0)


def build_failure(id: str) -> TokenOutput:
    return Failed(id, "broken")


tokens = st.sampled_from(WORDS).map(build_sampled) | st.sampled_from(WORDS).map(build_scored)
outputs = st.one_of(
    tokens,
    tokens,
    tokens,
    st.sampled_from(MARKERS).map(build_sampled),
    st.sampled_from([build_end, build_failure]),
)


def drop_after_failure(steps: list[Step]) -> list[Step]:
    """Drop outputs after a failure, which race with the end of the response."""
    passed: list[Step] = []
    for outputs, pause in steps:
        for position, (_, build) in enumerate(outputs):
            if build is build_failure:
                return [*passed, (outputs[: position + 1], 12)]
        passed.append((outputs, pause))
    return passed


# One iteration is a race: a stop string aborts the sequence in the second iteration
# with direct delivery, and in the first without it. An end that the engine reports
# between the two leaves nothing to abort.
pauses = st.integers(0, 6).filter(lambda pause: pause != 1)
step_lists = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 1), outputs), min_size=1, max_size=3), pauses),
    max_size=12,
).map(drop_after_failure)


def build_scheduled(id: str) -> TokenOutput:
    return Scheduled(id, 0)


SCHEDULED: Step = ([(0, build_scheduled), (1, build_scheduled)], 6)


def strip_signatures(body: bytes) -> bytes:
    """Replace the encrypted reasoning, whose nonce differs each time."""
    return re.sub(rb'("signature"|"encrypted_content"):"[^"]*"', rb"\1", body)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
@given(
    steps=step_lists,
    turns=st.lists(st.booleans(), max_size=5),
    is_scheduled_alone=st.booleans(),
    with_metrics=st.booleans(),
)
def test_direct_and_task_delivery_send_same_bytes(
    path: str,
    stream: bool,
    steps: list[Step],
    turns: list[bool],
    is_scheduled_alone: bool,
    with_metrics: bool,
) -> None:
    if is_scheduled_alone or not steps:
        steps = [SCHEDULED, *steps]
    else:
        steps = [([*SCHEDULED[0], *steps[0][0]], steps[0][1]), *steps[1:]]

    async def both() -> None:
        pulled, one = await respond(
            path, steps, stream=stream, direct=False, turns=[], with_metrics=with_metrics
        )
        pushed, other = await respond(
            path, steps, stream=stream, direct=True, turns=turns, with_metrics=with_metrics
        )
        assert strip_signatures(b"".join(pushed.sent)) == strip_signatures(b"".join(pulled.sent))
        assert pushed.statuses == pulled.statuses
        assert pulled.statuses[0] in (200, 500)
        assert other.aborted == one.aborted

    asyncio.run(both())


WORD_STEPS: list[Step] = [SCHEDULED, *(([(0, build_sampled(word))], 6) for word in WORDS)]


@pytest.mark.parametrize("with_metrics", [False, True])
async def test_direct_delivery_used_for_fast_client(with_metrics: bool) -> None:
    """Otherwise the test above would compare one path with itself."""
    client, _ = await respond(
        "/v1/messages", WORD_STEPS, stream=True, direct=True, turns=[], with_metrics=with_metrics
    )
    texts = [piece for piece in client.sent if b"text_delta" in piece]
    assert client.n_direct >= len(texts) - 1


async def test_per_request_metrics_sent_on_both_paths() -> None:
    usage = {"n": 1, "stream_options": {"include_usage": True}}
    bodies: list[bytes] = []
    for direct in (False, True):
        client, _ = await respond(
            "/v1/chat/completions",
            WORD_STEPS,
            stream=True,
            direct=direct,
            turns=[],
            with_metrics=True,
            **usage,
        )
        assert (client.n_direct > 0) is direct
        bodies.append(b"".join(client.sent))
    assert bodies[0] == bodies[1]
    assert bodies[0].count(b'"time_to_first_token_ms"') == 1


async def test_direct_delivery_writes_once_per_iteration() -> None:
    """A server that falls behind writes less often, not later."""
    steps: list[Step] = [
        SCHEDULED,
        ([(0, build_sampled(WORDS[0]))], 6),
        ([(0, build_sampled(WORDS[0]))] * 5, 6),
    ]
    client, _ = await respond("/v1/messages", steps, stream=True, direct=True, turns=[])
    assert max(piece.count(b"text_delta") for piece in client.sent) == 5


@pytest.mark.parametrize("direct", [False, True])
async def test_direct_delivery_stores_every_token(direct: bool) -> None:
    engine = SteppedEngine()
    app = cast(Any, build_app(engine))
    call = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "store": True,
        "stream": True,
    }
    client = Client(json.dumps(call).encode(), direct, [])
    request_scope = scope("/v1/chat/completions")
    request_scope["extensions"] = {asgi_extensions.DISCONNECT_EXTENSION: client.watch} | (
        {asgi_extensions.DIRECT_WRITE_EXTENSION: client} if direct else {}
    )
    task = asyncio.create_task(app(request_scope, client.receive, client.send))
    while not engine.live:  # noqa: ASYNC110
        await asyncio.sleep(0)
    (name,) = engine.names
    engine.deliver(Scheduled(name, 0))
    for word in WORDS:
        engine.deliver(Sampled(name, word))
        for _ in range(6):
            await asyncio.sleep(0)
    engine.deliver(Ended(name, FinishReason.STOP, 0))
    await task
    assert (client.n_direct > 0) is direct
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as http:
        stored = (await http.get(f"/v1/chat/completions/{name.removesuffix('-0-0')}")).json()
    assert stored["choices"][0]["message"]["content"] == TOKENIZER.decode(WORDS)


async def test_direct_delivery_pipeline_error_fails_only_its_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = build_sampled("no id")
    steps: list[Step] = [SCHEDULED, ([(0, build_sampled(WORDS[0]))], 6), ([(0, bad)], 6)]
    for direct in (False, True):
        client, engine = await respond("/v1/messages", steps, stream=True, direct=direct, turns=[])
        assert b"internal_error" in client.sent[-1] or b"api_error" in client.sent[-1]
        assert engine.aborted == engine.names
    assert "answering failed" in caplog.text


def connect(client: Client) -> Scope:
    request_scope = scope("/v1/chat/completions")
    request_scope["extensions"] = {
        asgi_extensions.DISCONNECT_EXTENSION: client.watch,
        asgi_extensions.DIRECT_WRITE_EXTENSION: client,
    }
    return request_scope


CHAT_STREAM = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
).encode()


@pytest.mark.parametrize("wait", [0.0, 1.0])
def test_stream_start_waits_for_first_token(wait: float) -> None:
    """With the token it is one write, unless the token is later than headers may be."""

    async def run() -> Client:
        engine = SteppedEngine()
        app = cast(Any, build_app(engine, timeouts=StreamTimeouts(admitted_headers=0.5)))
        client = Client(CHAT_STREAM, True, [])
        task = asyncio.create_task(app(connect(client), client.receive, client.send))
        while not engine.live:  # noqa: ASYNC110
            await asyncio.sleep(0)
        (name,) = engine.names
        engine.deliver(Scheduled(name, 0))
        for _ in range(6):
            await asyncio.sleep(0)
        await asyncio.sleep(wait)
        for word in WORDS[:2]:
            engine.deliver(Sampled(name, word))
            for _ in range(6):
                await asyncio.sleep(0)
        engine.deliver(Ended(name, FinishReason.STOP, 0))
        await task
        return client

    client = run_in_virtual_time(run())
    start = ["begin", "hold", "flush"] if wait else ["begin", "hold"]
    assert client.calls[: len(start) + 3] == [*start, "write", "write", "hold"]
    assert client.statuses == [200]
    assert client.sent[-1].endswith(b"data: [DONE]\n\n")
    assert b'"role"' in client.sent[0]
    assert b'"content":' in client.sent[1]


async def test_stream_failure_before_first_token_sends_held_start() -> None:
    steps: list[Step] = [SCHEDULED, ([(0, build_failure)], 12)]
    client, _ = await respond("/v1/chat/completions", steps, stream=True, direct=True, turns=[])
    assert client.calls == ["begin", "hold"]
    assert client.statuses == [200]
    assert b'"error"' in client.sent[-1]


class BusyEngine(BaseEngine):
    """An engine that never waits.

    count_written: counts what the client of its only request has got.
    """

    def __init__(self, count_written: Callable[[], int]) -> None:
        self.count_written = count_written
        self.counts: list[int] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        yield Started(1, choices=request.choices)
        for _ in range(4):
            yield TextDelta(0, "a", ())
            self.counts.append(self.count_written())
        yield ChoiceFinished(0, FinishReason.STOP)
        yield Finished(Usage(1, 4))


async def test_stream_of_busy_engine_is_written_at_once() -> None:
    """Callbacks of the event loop that would write held pieces do not run."""
    client = Client(CHAT_STREAM, True, [])
    engine = BusyEngine(lambda: client.calls.count("write"))
    app = build_asgi_app(
        Models([ServedModel("m", EventBackend(engine), 4096, 1_700_000_000)]),
        clock=FixedClock(),
        ids=SequentialIds(),
        store=MemoryStore(),
    )
    await app(connect(client), client.receive, cast(Any, client.send))
    assert engine.counts == [1, 2, 3, 4]


@dataclass
class Stream:
    """A client of a real connection that receives a stream."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def next_token(self) -> None:
        while b'"content":"' not in await self.reader.readline():
            pass


@asynccontextmanager
async def connections(
    wire: Wire, engine: SteppedEngine, count: int
) -> AsyncGenerator[list[Stream]]:
    """Open streams whose requests reach the engine in this order."""
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    ).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
        b"application/json\r\n"
    )
    streams: list[Stream] = []
    for number in range(count):
        reader, writer = await wire.connect()
        writer.write(head + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        streams.append(Stream(reader, writer))
        while len(engine.names) <= number:  # noqa: ASYNC110
            await asyncio.sleep(0)
    yield streams
    for stream in streams:
        stream.writer.close()


async def test_direct_delivery_slow_reader_does_not_delay_others() -> None:
    """Each fast client has its token before the next step, while the slow one has
    stopped reading.
    """
    engine = SteppedEngine()
    async with serving(build_app(engine)) as wire, connections(wire, engine, 256) as streams:
        slow, *fast = streams
        long = TOKENIZER.encode("answer", special=False)[0]
        for id in engine.names:
            engine.deliver(Scheduled(id, 0))
        n_slow = 0
        for step in range(8):
            for _ in range(40_000 if step == 0 else 1):
                # The first step's data for the slow client fills the buffers of both
                # sockets.
                engine.deliver(Sampled(engine.names[0], long))
                n_slow += 1
            for id in engine.names[1:]:
                engine.deliver(Sampled(id, long))
            await asyncio.gather(*(stream.next_token() for stream in fast))
        for id in engine.names:
            engine.deliver(Ended(id, FinishReason.LENGTH))
        for stream in fast:
            assert (await stream.reader.read(-1)).endswith(b"0\r\n\r\n")
        (answer,) = answers(await slow.reader.read(-1))
        assert answer.body.count(b'"content":"') >= n_slow
        assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_direct_delivery_disconnect_aborts_engine_request() -> None:
    engine = SteppedEngine()
    async with (
        serving(build_app(engine)) as wire,
        connections(wire, engine, 2) as (leaving, staying),
    ):
        for id in engine.names:
            engine.deliver(Scheduled(id, 0))
            engine.deliver(Sampled(id, WORDS[0]))
        await leaving.next_token()
        leaving.writer.close()
        while engine.names[0] in engine.live:
            for id in engine.names:
                engine.deliver(Sampled(id, WORDS[1]))
            await asyncio.sleep(0)
        assert engine.aborted == [engine.names[0]]
        engine.deliver(Ended(engine.names[1], FinishReason.LENGTH))
        assert (await staying.reader.read(-1)).endswith(b"0\r\n\r\n")
