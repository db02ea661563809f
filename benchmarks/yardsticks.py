"""The least that a server can do: constant answers from a raw ASGI app under uvicorn,
or from a bare asyncio protocol.

    python benchmarks/yardsticks.py "raw uvicorn"|"bare protocol" STEP

One ticker sends a chunk to every stream each step; an answer that is not streamed waits
for as many steps as it has tokens. `overhead.py` runs them. Both listen on a free port,
which the first line of their output names.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from typing import Any

import httptools
import uvicorn
import uvloop
from streaming import CHUNK, App, Receive, Scope, Send, Ticker

WHOLE = json.dumps(
    {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " word word"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
    }
).encode()
MODELS = (
    b'{"object":"list","data":['
    b'{"id":"m","object":"model","created":1700000000,"owned_by":"bench"}]}'
)
FINISH = CHUNK.replace(b'{"content":" word"}', b"{}").replace(
    b'"finish_reason":null', b'"finish_reason":"length"'
)
USAGE = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",'
    b'"created":1700000000,'
    b'"model":"tiny","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)


def read_body(body: bytes) -> tuple[bool, int]:
    """Whether the answer is a stream, and its tokens."""
    call: dict[str, Any] = json.loads(body)
    limits = [
        call[name]
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
        if name in call
    ]
    return bool(call.get("stream")), int(limits[0]) if limits else 1


def render_end(tokens: int) -> bytes:
    return FINISH + USAGE % (tokens, 10 + tokens) + b"data: [DONE]\n\n"


def build_app(step: float) -> App:
    ticker = Ticker(step)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        loop = asyncio.get_running_loop()

        async def wait() -> None:
            due: asyncio.Future[None] = loop.create_future()
            ticker.watch(lambda: due.set_result(None))
            await due

        async def answer(body: bytes) -> None:
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        body = b""
        more = True
        while more:
            message = await receive()
            body = body + message.get("body", b"")
            more = message.get("more_body", False)
        if scope["method"] == "GET":
            await answer(MODELS)
            return
        stream, tokens = read_body(body)
        if not stream:
            for _ in range(tokens):
                await wait()
            await answer(WHOLE)
            return
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for _ in range(tokens):
            await wait()
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": render_end(tokens)})

    return app


class BareProtocol(asyncio.Protocol):
    """A request is parsed by llhttp, and the ticker writes straight to the transport."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        stream, tokens = read_body(self._body)
        self._body = b""
        self._parser = httptools.HttpRequestParser(self)
        if stream:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: "
                b"chunked\r\n\r\n"
            )
        self._ticker.watch(self._build_step(tokens, stream=stream))

    def _build_step(self, left: int, *, stream: bool) -> Callable[[], None]:
        chunk = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)
        write = self._transport.write
        watch = self._ticker.watch
        tokens = left

        def step() -> None:
            nonlocal left
            left -= 1
            if stream:
                write(chunk)
            if left:
                watch(step)
            elif stream:
                end = render_end(tokens)
                write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
            else:
                head = (
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
                    b"%d\r\n\r\n"
                )
                write(head % len(WHOLE) + WHOLE)

        return step


async def serve_bare(listener: socket.socket, step: float) -> None:
    ticker = Ticker(step)
    server = await asyncio.get_running_loop().create_server(
        lambda: BareProtocol(ticker), sock=listener
    )
    await server.serve_forever()


def main() -> None:
    kind = sys.argv[1]
    step = float(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    if kind == "bare protocol":
        uvloop.run(serve_bare(listener, step))
    else:
        config = uvicorn.Config(
            build_app(step),
            http="httptools",
            loop="uvloop",
            log_level="error",
            access_log=False,
            proxy_headers=False,
        )
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
