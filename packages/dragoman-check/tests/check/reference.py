"""Reference servers for the checker: Dragoman's engines and HTTP server, behind a proxy
that plants defects.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.http.asgi_extensions import DISCONNECT_EXTENSION
from dragoman.launch import (
    Server,
    ShutdownConfig,
    build_models,
    build_serving_options,
    build_uvicorn_config,
)
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, load_settings
from dragoman.store.memory import MemoryStore

from .wire import Defect, Request, Response

MODELS = """{
    "tiny": {"model": "tiny", "pinned": true, "max_model_len": 8192},
    "scripted": {"model": "scripted", "pinned": true, "max_model_len": 8192},
    "sim": {
        "model": "sim", "pinned": true, "max_model_len": 8192, "time_scale": 100000,
        "sim_tool_calls": 0
    }
}"""


class DefectProxy:
    """An ASGI middleware that plants one defect at a time.

    defect: None forwards everything unchanged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.defect: Defect | None = None
        self._running = 0
        self._last_bodies: dict[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        defect = self.defect
        if (
            scope["type"] != "http"
            or defect is None
            or not defect.applies(scope["method"], scope["path"])
        ):
            await self._app(scope, receive, send)
            return
        if defect.ignores_disconnect:
            await self._app_without_disconnect(scope, receive, send)
            return
        request = Request(
            scope["method"], scope["path"], _decode_headers(scope), await _read_body(receive)
        )
        response = defect.edit_request(request)
        if response is None:
            response = await self._forward(defect, request, scope)
        await _send_response(response, send)

    async def _forward(self, defect: Defect, request: Request, scope: Scope) -> Response:
        self._running += 1
        try:
            response = await _call(self._app, request, scope)
        finally:
            self._running -= 1
        defect.edit_response(request, response)
        if defect.mixes_streams:
            last_body = self._last_bodies.get(request.path)
            self._last_bodies[request.path] = response.body
            if self._running and last_body is not None:
                response.body = last_body
        return response

    async def _app_without_disconnect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application to completion, even if the client has disconnected."""
        messages = [await receive()]

        async def replay() -> Message:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()
            raise AssertionError

        extensions: dict[str, Any] = scope.get("extensions") or {}

        def ignore_callback(_: Callable[[], object] | None, /) -> None:
            return None

        await asyncio.shield(
            self._app(
                {**scope, "extensions": {**extensions, DISCONNECT_EXTENSION: ignore_callback}},
                replay,
                send,
            )
        )


def _decode_headers(scope: Scope) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}


async def _read_body(receive: Receive) -> bytes:
    body = b""
    has_more = True
    while has_more:
        message = await receive()
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    return body


async def _call(app: ASGIApp, request: Request, scope: Scope) -> Response:
    """Call the application and return its complete response."""
    response = Response()
    bodies = [{"type": "http.request", "body": request.body, "more_body": False}]

    async def receive() -> Message:
        if bodies:
            return bodies.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response.status = message["status"]
            response.headers = {
                name.decode(): value.decode("latin-1") for name, value in message["headers"]
            }
        elif message["type"] == "http.response.body":
            response.body += message.get("body", b"")

    replaced = {b"content-length": str(len(request.body)).encode()}
    headers = [
        (name.encode(), replaced.get(name.encode(), value.encode("latin-1")))
        for name, value in request.headers.items()
    ]
    path: dict[str, Any] = {
        "path": request.path,
        "raw_path": request.path.encode(),
        "method": request.method,
    }
    await app({**scope, **path, "headers": headers}, receive, send)
    return response


async def _send_response(response: Response, send: Send) -> None:
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    if response.status != 204:
        headers["content-length"] = str(len(response.body))
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": raw})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})


@contextmanager
def serve(app: ASGIApp, models: Models) -> Generator[str]:
    """Run a server with Dragoman's HTTP protocol in a thread, and yield its address."""
    server = Server(
        build_uvicorn_config(app, Settings(log_level="error")),
        models,
        shutdown_config=ShutdownConfig(timeout=0.0),
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def build_reference(settings: Settings | None = None) -> tuple[DefectProxy, Models]:
    """Build one server with all reference engines.

    settings: options for another server.
    """
    settings = settings or load_settings({"models": MODELS}, {})
    models = build_models(settings, SystemClock())
    return DefectProxy(
        build_asgi_app(models, options=build_serving_options(settings), store=MemoryStore())
    ), models


EditBytes = Callable[[bytes], bytes]


@contextmanager
def proxy_bytes(url: str, edit: EditBytes) -> Generator[str]:
    """Run a TCP proxy in front of a server, which edits what clients send. It does not
    parse HTTP.
    """
    host, port = url.removeprefix("http://").split(":")
    urls: list[str] = []
    is_listening = threading.Event()
    loops = list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def copy(
        source: asyncio.StreamReader, target: asyncio.StreamWriter, change: EditBytes
    ) -> None:
        while data := await source.read(1 << 20):
            target.write(change(data))
            await target.drain()
        target.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        try:
            directions = copy(reader, upstream_writer, edit), copy(upstream_reader, writer, bytes)
            await asyncio.gather(*directions, return_exceptions=True)
        finally:
            for stream_writer in (writer, upstream_writer):
                stream_writer.close()
                with suppress(OSError):
                    await stream_writer.wait_closed()

    async def run() -> None:
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.create_task(connect(reader, writer)))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        loops.append((asyncio.get_running_loop(), stop := asyncio.Event()))
        is_listening.set()
        await stop.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    is_listening.wait()
    try:
        yield urls[0]
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join()
