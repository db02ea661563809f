"""A client that disconnects at any time frees the engine; idle streams send keepalives;
a stalled client is dropped.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.serving.harness import ServerHarness, build_server, scope
from tests.serving.tool_servers import LocalToolServers, build_tool_server

from dragoman.engines.scripted import CallTool, Say, ScriptEntry, Wait
from dragoman.http.asgi_extensions import DISCONNECT_EXTENSION, find_on_disconnect
from dragoman.serving.disconnect import ClientGone, cancel_on_disconnect, with_disconnect_events
from dragoman.serving.serving_options import ServingOptions
from dragoman.serving.stream_keepalive import StreamTimeouts
from dragoman.tools.interface import ToolCallResult

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(params=["asgi", "extension"])
def extended(request: pytest.FixtureRequest) -> bool:
    """Whether the server reports disconnects by Dragoman's extension, or only by ASGI
    messages.
    """
    return request.param == "extension"


class AsgiConnection:
    """Both ends of one ASGI connection."""

    def __init__(self, ask: dict[str, Any], extended: bool = False) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.news = asyncio.Event()
        self.inbox.put_nowait(
            {"type": "http.request", "body": json.dumps(ask).encode(), "more_body": False}
        )
        self._extended = extended
        self._callback: Callable[[], object] | None = None

    def leave(self) -> None:
        self.inbox.put_nowait({"type": "http.disconnect"})
        if self._callback is not None:
            asyncio.get_running_loop().call_soon(self._callback)

    def watch(self, callback: Callable[[], object] | None, /) -> None:
        self._callback = callback

    def scope(self, path: str) -> Scope:
        return {
            **scope(path),
            "extensions": {DISCONNECT_EXTENSION: self.watch} if self._extended else {},
        }

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.news.set()

    async def until(self, text: bytes) -> None:
        while text not in b"".join(message.get("body", b"") for message in self.sent):
            self.news.clear()
            await self.news.wait()


class WaitingToolServers(LocalToolServers):
    """Tool servers whose calls never end.

    begun: set when a call has begun.
    n_cancelled: calls that were cancelled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.n_cancelled = 0

    async def call(
        self,
        name: str,
        arguments: str,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> ToolCallResult:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        return await super().call(name, arguments, timeout=timeout)


class EndlessSleep:
    """A `sleep` function that never returns, with an event for its start."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, _: float) -> None:
        self.begun.set()
        await asyncio.Event().wait()


def start_request(server: ServerHarness, line: AsgiConnection) -> asyncio.Task[None]:
    async def run() -> None:
        await server.app(line.scope("/v1/chat/completions"), line.inbox.get, line.send)

    return asyncio.create_task(run())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "entries", [(Wait(9.0), Say("late")), (Say("Hello there"), Wait(9.0), Say("!"))]
)
async def test_disconnect_before_or_during_output_aborts_engine(
    streamed: bool, entries: tuple[Any, ...], extended: bool
) -> None:
    sleep = EndlessSleep()
    server = build_server(ScriptEntry(entries), sleep=sleep)
    line = AsgiConnection({**ASK, "stream": streamed}, extended)
    task = start_request(server, line)
    await sleep.begun.wait()
    line.leave()
    await asyncio.wait_for(task, 60)
    assert (server.engine.num_closed_early, server.engine.num_running) == (1, 0)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/responses",
            {
                "input": "hi",
                "tools": [{"type": "mcp", "server_label": "weather", "require_approval": "never"}],
            },
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 100,
                "messages": [{"role": "user", "content": "hi"}],
                "mcp_servers": [{"type": "url", "name": "weather", "url": "https://h/mcp"}],
            },
        ),
    ],
)
async def test_disconnect_cancels_running_tool_calls(
    path: str, fields: dict[str, Any], streamed: bool, extended: bool
) -> None:
    servers = WaitingToolServers()
    calls = (CallTool("weather__look"), CallTool("weather__send"))
    server = build_tool_server(ScriptEntry(calls), tool_servers=servers)
    line = AsgiConnection({"model": "m", "stream": streamed, **fields}, extended)
    task = asyncio.create_task(_run(server, line, path))
    await servers.begun.wait()
    line.leave()
    await asyncio.wait_for(task, 60)
    assert (servers.n_cancelled, servers.calls) == (2, [])


async def test_disconnect_multiple_prompts_aborts_all(extended: bool) -> None:
    sleep = EndlessSleep()
    server = build_server(ScriptEntry((Wait(9.0), Say("late")), repeat=True), sleep=sleep)
    line = AsgiConnection({"model": "m", "prompt": ["a", "b", "c"]}, extended)
    task = asyncio.create_task(_run(server, line, "/v1/completions"))
    await sleep.begun.wait()
    line.leave()
    await asyncio.wait_for(task, 60)
    assert (server.engine.num_closed_early, server.engine.num_running) == (3, 0)


async def _run(server: ServerHarness, line: AsgiConnection, path: str) -> None:
    await server.app(line.scope(path), line.inbox.get, line.send)


async def test_idle_stream_sends_headers_and_keepalives(extended: bool) -> None:
    sleep = EndlessSleep()
    patience = StreamTimeouts(headers=0.001, keepalive=0.001)
    server = build_server(
        ScriptEntry((Wait(9.0), Say("late"))),
        options=ServingOptions(timeouts=patience),
        sleep=sleep,
    )
    line = AsgiConnection({**ASK, "stream": True}, extended)
    task = start_request(server, line)
    await line.until(b": keepalive\n\n: keepalive\n\n")
    assert line.sent[0]["status"] == 200
    line.leave()
    await asyncio.wait_for(task, 60)


async def test_stalled_client_is_dropped(extended: bool) -> None:
    patience = StreamTimeouts(headers=0.001, keepalive=0.001, stall=0.002)
    server = build_server(
        ScriptEntry((Say("Hello there"), Say(" again"))), options=ServingOptions(timeouts=patience)
    )
    line = AsgiConnection({**ASK, "stream": True}, extended)

    async def deaf(message: Message) -> None:
        line.sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    await asyncio.wait_for(server.app(line.scope("/v1/chat/completions"), line.inbox.get, deaf), 60)
    assert server.engine.num_running == 0
    assert len(line.sent) == 2


async def test_disconnect_during_request_body_skips_engine(extended: bool) -> None:
    server = build_server(ScriptEntry((Say("Hello"),)))
    line = AsgiConnection(ASK, extended)
    line.inbox.get_nowait()
    line.inbox.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    line.leave()
    await asyncio.wait_for(start_request(server, line), 60)
    assert (server.engine.num_requests, line.sent) == (0, [])


async def test_disconnect_cancels_embeddings(extended: bool) -> None:
    line = AsgiConnection(ASK, extended)
    begun = asyncio.Event()
    ended = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        watch = find_on_disconnect(scope)
        assert watch is not None
        await cancel_on_disconnect(watch, work())

    request_scope = line.scope("/v1/embeddings")
    task = asyncio.ensure_future(
        (app if extended else partial(with_disconnect_events, app))(
            request_scope, line.inbox.get, line.send
        )
    )
    await begun.wait()
    line.leave()
    with pytest.raises(ClientGone):
        await asyncio.wait_for(task, 60)
    assert ended.is_set()


async def test_disconnect_leaves_task_of_request_uncancelled():
    callbacks: list[Callable[[], object] | None] = []
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def serve() -> int:
        with pytest.raises(ClientGone):
            await cancel_on_disconnect(callbacks.append, work())
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    task = asyncio.ensure_future(serve())
    await begun.wait()
    cancel = callbacks[0]
    assert cancel is not None
    cancel()
    assert await task == 0
    assert callbacks[1:] == [None]


async def test_disconnect_of_cancelled_request_stays_cancelled():
    callbacks: list[Callable[[], object] | None] = []
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(cancel_on_disconnect(callbacks.append, work()))
    await begun.wait()
    task.cancel()
    cancel = callbacks[0]
    assert cancel is not None
    cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_server_cancel_is_not_treated_as_client_disconnect(extended: bool) -> None:
    sleep = EndlessSleep()
    server = build_server(ScriptEntry((Say("Hello there"), Wait(9.0), Say("!"))), sleep=sleep)
    task = start_request(server, AsgiConnection({**ASK, "stream": True}, extended))
    await sleep.begun.wait()
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
    assert (server.engine.num_closed_early, server.engine.num_running) == (1, 0)
