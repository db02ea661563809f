"""Responses over a WebSocket, through the official SDK on a real connection."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import openai
import pytest
from openai.resources.responses.responses import AsyncResponsesConnection
from starlette.types import ASGIApp
from tests.serving.harness import load_tiny_tokenizer
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dragoman.engines.scripted import Fail, Say, Script, ScriptedEngine, ScriptEntry, Think
from dragoman.launch import Server, ShutdownConfig, build_models, build_uvicorn_config
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.auth import Keyring
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings
from dragoman.store import MemoryStore, Store
from dragoman.tenants import KeyHash, Tenant, hash_key

ANSWER = ScriptEntry((Think("Hm."), Say("Well.")), repeat=True)
HI: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def run_server(
    *entries: ScriptEntry,
    store: Store | None = None,
    options: ServingOptions | None = None,
    tenants: Mapping[str, Tenant] | None = None,
) -> AsyncGenerator[str]:
    """Run a server and yield its host:port."""
    tokenizer = load_tiny_tokenizer()
    models = Models(
        [
            ServedModel(
                "m",
                EventBackend(ScriptedEngine(Script(entries), tokenizer=tokenizer), tokenizer),
                4096,
                1,
            )
        ]
    )
    app = build_asgi_app(models, options=options, store=store, tenants=tenants)
    async with serving(app, models) as where:
        yield where


@asynccontextmanager
async def serving(app: ASGIApp, models: Models) -> AsyncGenerator[str]:
    async with stoppable(app, models) as (where, _):
        yield where


@asynccontextmanager
async def stoppable(
    app: ASGIApp, models: Models, grace: float = 0.0
) -> AsyncGenerator[tuple[str, Server]]:
    server = Server(
        build_uvicorn_config(app, Settings(max_body_bytes=100_000)),
        models,
        shutdown_config=ShutdownConfig(timeout=grace),
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)
        yield f"127.0.0.1:{listener.getsockname()[1]}", server
        server.should_exit = True
        await task


def client(where: str, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=key, base_url=f"http://{where}/v1", max_retries=0)


def raw_connection(where: str) -> connect:
    """Open a connection that reads all frames, even unrequested ones: otherwise its
    close would wait for them.
    """
    return connect(f"ws://{where}/v1/responses", max_queue=None)


async def respond(connection: AsyncResponsesConnection, **fields: Any) -> list[Any]:
    """Return the events of one response."""
    event: Any = {"type": "response.create", "model": "m", "input": HI, **fields}
    await connection.send(event)
    events: list[Any] = []
    while not events or events[-1].type not in (
        "response.completed",
        "response.incomplete",
        "response.failed",
    ):
        events.append(await connection.recv())
        if events[-1].type == "error" and getattr(events[-1], "status", None):
            break
    return events


async def test_websocket_sends_same_events_as_stream():
    async with run_server(ANSWER) as where, client(where) as sdk:
        async with sdk.responses.connect() as connection:
            sent = [json.loads(event.to_json()) for event in await respond(connection, store=False)]
        stream = await sdk.responses.create(model="m", input=HI, store=False, stream=True)
        streamed = [json.loads(event.to_json()) async for event in stream]
    assert [event["type"] for event in sent] == [event["type"] for event in streamed]
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=("without a store", "with one"))
async def test_websocket_continues_last_response_without_store(
    store: Store | None,
):
    async with run_server(ANSWER, store=store) as where, client(where) as sdk:
        async with sdk.responses.connect() as connection:
            *_, first = await respond(connection, store=False)
            *_, second = await respond(
                connection, store=False, previous_response_id=first.response.id
            )
            assert second.response.previous_response_id == first.response.id
            assert second.response.usage.input_tokens > first.response.usage.input_tokens
            # Only the most recent one.
            (rejected,) = await respond(
                connection, store=False, previous_response_id=first.response.id
            )
            assert (rejected.status, rejected.error.code) == (400, "previous_response_not_found")
            *_, third = await respond(
                connection, store=False, previous_response_id=second.response.id
            )
            assert third.type == "response.completed"
        async with sdk.responses.connect() as another:
            (rejected,) = await respond(
                another, store=False, previous_response_id=third.response.id
            )
            assert rejected.error.code == "previous_response_not_found"


async def test_websocket_failed_continuation_clears_last_response():
    failing = ScriptEntry((Say("x"), Fail()))
    entries = (ScriptEntry((Say("a"),)), failing, ANSWER)
    async with (
        run_server(*entries) as where,
        client(where) as sdk,
        sdk.responses.connect() as connection,
    ):
        *_, first = await respond(connection, store=False)
        *_, failed = await respond(connection, store=False, previous_response_id=first.response.id)
        assert failed.type == "response.failed"
        (rejected,) = await respond(connection, store=False, previous_response_id=first.response.id)
        assert rejected.error.code == "previous_response_not_found"
        *_, again = await respond(connection, store=False)
        assert again.type == "response.completed"


async def test_websocket_stored_response_continued_on_new_connection():
    async with run_server(ANSWER, store=MemoryStore()) as where, client(where) as sdk:
        async with sdk.responses.connect() as connection:
            *_, first = await respond(connection)
        async with sdk.responses.connect() as connection:
            *_, second = await respond(connection, previous_response_id=first.response.id)
        assert (
            await sdk.responses.retrieve(second.response.id)
        ).previous_response_id == first.response.id


async def test_websocket_prewarm_has_no_output_and_is_continued():
    async with (
        run_server(ANSWER) as where,
        client(where) as sdk,
        sdk.responses.connect() as connection,
    ):
        warm = await respond(connection, store=False, generate=False)
        assert [event.type for event in warm] == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        assert warm[-1].response.output == []
        more: Any = [{"role": "user", "content": "and more"}]
        *_, after = await respond(
            connection, store=False, previous_response_id=warm[-1].response.id, input=more
        )
        assert after.response.usage.input_tokens > warm[-1].response.usage.input_tokens


async def test_websocket_prewarm_continuation_has_no_output():
    async with (
        run_server(ANSWER) as where,
        client(where) as sdk,
        sdk.responses.connect() as connection,
    ):
        *_, first = await respond(connection, store=False)
        warm = await respond(
            connection, store=False, generate=False, previous_response_id=first.response.id
        )
        assert [event.type for event in warm] == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        assert warm[-1].response.usage.input_tokens > first.response.usage.input_tokens


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ("{", None),
        ("[]", None),
        ('{"type":"response.steer"}', "type"),
        ('{"model":"m"}', "type"),
        ('{"type":"response.create","model":"m"}', "input"),
        ('{"type":"response.create","model":"m","input":"x","background":true}', "background"),
        ('{"type":"response.create","model":"m","input":"x","stream_id":"a"}', "stream_id"),
        ('{"type":"response.create","model":"m","input":"x","generate":"no"}', "generate"),
        ('{"type":"response.create","model":"m","input":"x","temperature":9}', "temperature"),
    ],
)
async def test_websocket_invalid_frame_rejected_and_stays_open(frame: str, param: str | None):
    async with run_server(ANSWER) as where, raw_connection(where) as raw:
        await raw.send(frame)
        event = json.loads(await raw.recv())
        assert (event["type"], event["status"], event["error"]["param"]) == ("error", 400, param)
        assert event["error"]["message"]
        await raw.send('{"type":"response.processed","response_id":"resp_1"}')
        await raw.send(
            '{"type":"response.create","model":"m","input":"hi","top_k":3,"unheard_of":1}'
        )
        begun = json.loads(await raw.recv())
        assert begun["type"] == "response.created"
        assert any("unheard_of" in warning for warning in begun["dragoman_warnings"])


async def test_websocket_frames_answered_in_order():
    async with run_server(ANSWER) as where, raw_connection(where) as raw:
        for top_p in (0.25, 0.5):
            await raw.send(
                json.dumps({"type": "response.create", "model": "m", "input": "hi", "top_p": top_p})
            )
        ends: list[float] = []
        while len(ends) < 2:
            event = json.loads(await raw.recv())
            if event["type"] == "response.completed":
                ends.append(event["response"]["top_p"])
        assert ends == [0.25, 0.5]


async def test_websocket_too_many_queued_frames_close_connection():
    slow = ScriptEntry((Say("Well."),), repeat=True, delay=60)
    async with run_server(slow) as where, raw_connection(where) as raw:
        with suppress(ConnectionClosed):
            for _ in range(50):
                await raw.send('{"type":"response.create","model":"m","input":"hi"}')
        with pytest.raises(ConnectionClosed):
            await end_of(raw)
        assert raw.close_code == 1008


async def test_websocket_large_queued_frames_close_connection():
    slow = ScriptEntry((Say("Well."),), repeat=True, delay=60)
    options = ServingOptions(max_body_bytes=100_000)
    async with run_server(slow, options=options) as where, raw_connection(where) as raw:
        for _ in range(3):
            await raw.send(
                json.dumps({"type": "response.create", "model": "m", "input": "x" * 60_000})
            )
        with pytest.raises(ConnectionClosed):
            await end_of(raw)
        assert raw.close_code == 1008


async def test_websocket_queued_bytes_bounded_over_all_connections():
    slow = ScriptEntry((Say("Well."),), repeat=True, delay=60)
    frame = json.dumps({"type": "response.create", "model": "m", "input": "x" * 60_000})
    room = ServingOptions(max_inflight_body_bytes=100_000)
    async with (
        run_server(slow, options=room) as where,
        raw_connection(where) as first,
        raw_connection(where) as second,
    ):
        for _ in range(2):
            await first.send(frame)
        # The frame that is being answered is no longer in the queue.
        assert "created" in json.loads(await first.recv())["type"]
        for _ in range(2):
            await second.send(frame)
        with pytest.raises(ConnectionClosed):
            await end_of(second)
        assert second.close_code == 1013


async def receive_frames(raw: ClientConnection) -> AsyncGenerator[str | bytes]:
    """Yield the received frames until the connection is closed in any way."""
    with suppress(ConnectionClosed):
        while True:
            yield await raw.recv()


async def end_of(raw: ClientConnection) -> None:
    while True:
        await raw.recv()


@pytest.mark.parametrize("generate", [True, False])
async def test_websocket_disconnect_frees_engine_slot(generate: bool):
    models = build_models(Settings(max_num_seqs=2), SystemClock())
    health = next(iter(models)).engines[0].health
    story = {
        "type": "response.create",
        "model": "tiny",
        "input": "word " * 9_000,
        "generate": generate,
    }
    async with serving(build_asgi_app(models), models) as where, raw_connection(where) as raw:
        await raw.send(json.dumps({**story, "max_output_tokens": 20_000, "ignore_eos": True}))
        while health().running != 1:  # noqa: ASYNC110 - the engine's thread tells nobody
            await asyncio.sleep(0)
        await raw.close()
        while health().running != 0:  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("grace", "tokens", "last"), [(60.0, 200, "incomplete"), (0.0, 20_000, "failed")]
)
async def test_websocket_shutdown_drains_running_and_closes_idle(
    grace: float, tokens: int, last: str
):
    models = build_models(Settings(), SystemClock())
    story = {
        "type": "response.create",
        "model": "tiny",
        "input": "Hi",
        "max_output_tokens": tokens,
        "ignore_eos": True,
    }
    async with stoppable(build_asgi_app(models), models, grace) as (where, server):
        async with raw_connection(where) as busy, raw_connection(where) as idle:
            for _ in range(2):
                await busy.send(json.dumps(story))
            while "delta" not in json.loads(await busy.recv())["type"]:
                pass
            server.should_exit = True
            with pytest.raises(ConnectionClosed):
                await idle.recv()
            types = [json.loads(event)["type"] async for event in receive_frames(busy)]
        assert (idle.close_code, busy.close_code) == (1012, 1012)
        assert types[-1] == f"response.{last}"
        assert "response.created" not in types


async def test_websocket_oversized_frame_closes_connection():
    async with run_server(ANSWER) as where, raw_connection(where) as raw:
        await raw.send(
            json.dumps({"type": "response.create", "model": "m", "input": "x" * 100_001})
        )
        with pytest.raises(ConnectionClosed):
            await raw.recv()
        assert raw.close_code == 1009


async def test_websocket_lifetime_reached_closes_connection():
    options = ServingOptions(socket_lifetime=0.0)
    async with run_server(ANSWER, options=options) as where, raw_connection(where) as raw:
        frame = json.loads(await raw.recv())
        assert (frame["type"], frame["error"]["code"]) == (
            "error",
            "websocket_connection_limit_reached",
        )
        with pytest.raises(ConnectionClosed):
            await raw.recv()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer mine", "x-api-key": "yours"}, 401),
        ({"authorization": "Bearer mine", "origin": "https://evil.example"}, 403),
        ({"authorization": "Bearer mine", "host": "evil.example"}, 421),
    ],
)
async def test_websocket_handshake_without_access_rejected(headers: dict[str, str], status: int):
    async with run_server(ANSWER, options=ServingOptions(api_key=("mine", "yours"))) as where:
        assert await handshake(where, headers) == status
        async with connect(f"ws://{where}/v1/responses", additional_headers={"x-api-key": "mine"}):
            pass


async def handshake(where: str, headers: dict[str, str]) -> int:
    """Send a handshake and return the status of the response."""
    header_fields = {
        "host": where,
        "upgrade": "websocket",
        "connection": "upgrade",
        "sec-websocket-version": "13",
    } | headers
    lines = [f"{name}: {value}" for name, value in header_fields.items()]
    key = "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA=="
    reader, writer = await asyncio.open_connection(*where.split(":"))
    writer.write("\r\n".join(["GET /v1/responses HTTP/1.1", key, *lines, "", ""]).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"x-request-id" in head
    writer.close()
    return int(head.split()[1])


async def test_websocket_connection_limit_returns_503():
    async with run_server(ANSWER, options=ServingOptions(max_sockets=1)) as where:
        async with connect(f"ws://{where}/v1/responses"):
            with pytest.raises(InvalidStatus) as rejected:
                async with connect(f"ws://{where}/v1/responses"):
                    pass
            assert rejected.value.response.status_code == 503
        with pytest.raises(InvalidStatus):
            async with connect(f"ws://{where}/v1/chat/completions"):
                pass


async def test_websockets_of_one_key_leave_share_of_other():
    tenants = build_tenants("greedy") | build_tenants("other")
    options = ServingOptions(max_sockets=8)
    async with (
        run_server(ANSWER, options=options, tenants=tenants) as where,
        AsyncExitStack() as stack,
    ):

        async def enter(key: str) -> None:
            headers = {"authorization": f"Bearer {key}"}
            await stack.enter_async_context(
                connect(f"ws://{where}/v1/responses", additional_headers=headers)
            )

        for _ in range(6):
            await enter("greedy")
        with pytest.raises(InvalidStatus) as rejected:
            await enter("greedy")
        assert rejected.value.response.status_code == 503
        for _ in range(2):
            await enter("other")


CREATE = '{"type":"response.create","model":"m","input":"hi"}'
FRAMES_WITHOUT_CALL = [
    '{"type":"response.processed","response_id":"resp_1"}',
    "{",
    '{"type":"response.create","model":"m","input":"x","temperature":9}',
]


def build_tenants(name: str) -> dict[str, Tenant]:
    """Return a key that is its own name, with three requests a minute."""
    return {name: Tenant(id=name, secrets=(KeyHash(hash_key(name)),), requests_per_minute=3)}


@asynccontextmanager
async def run_keyed_connection() -> AsyncGenerator[tuple[Keyring, ClientConnection]]:
    """Yield the keys of a server, and a connection with the key `a`."""
    tokenizer = load_tiny_tokenizer()
    backend = EventBackend(ScriptedEngine(Script((ANSWER,)), tokenizer=tokenizer), tokenizer)
    models = Models([ServedModel("m", backend, 4096, 1)])
    app = build_asgi_app(models, tenants=build_tenants("a"))
    headers = {"authorization": "Bearer a"}
    async with (
        serving(app, models) as where,
        connect(f"ws://{where}/v1/responses", additional_headers=headers) as raw,
    ):
        yield app.keyring, raw


@pytest.mark.parametrize("frame", FRAMES_WITHOUT_CALL)
async def test_websocket_frames_without_call_are_limited(frame: str) -> None:
    async with run_keyed_connection() as (_, raw):
        for _ in range(3):
            await raw.send(frame)
        await raw.send(CREATE)
        statuses: list[int] = []
        while 429 not in statuses:
            event = json.loads(await raw.recv())
            assert event["type"] == "error"
            statuses.append(event["status"])
        assert statuses[:-1] in ([], [400] * 3)


@pytest.mark.parametrize("frame", [CREATE, *FRAMES_WITHOUT_CALL])
async def test_websocket_of_revoked_key_ends_with_next_frame(frame: str) -> None:
    async with run_keyed_connection() as (keyring, raw):
        await raw.send(CREATE)
        while json.loads(await raw.recv())["type"] != "response.completed":
            pass
        keyring.replace_tenants(build_tenants("b"))
        await raw.send(frame)
        event = json.loads(await raw.recv())
        assert (event["type"], event["status"]) == ("error", 401)
        with pytest.raises(ConnectionClosed) as closed:
            await raw.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert "revoked" in closed.value.rcvd.reason
