"""Server CPU per streamed token, as a ratio to a bare ASGI app under uvicorn alone in
the same run.

    python benchmarks/streaming.py [--streams 128] [--tokens 1000] [--tick 0.01]
    [--rounds 2]

Both servers are processes of their own and send one chunk of the same size to every
stream a tick. The bare one writes a constant; Dragoman's runs the whole path: a token
engine that ticks, detokeniser, parsers, chat writer, SSE, our own HTTP. CPU is user
plus system time of the server process, as it reports it itself, less what it took
before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",'
    b'"created":1700000000,"model":"tiny","system_fingerprint":"dragoman-0.1.0",'
    b'"choices":[{"index":0,"delta":{"content":" word"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)


class Ticker:
    """One timer for all streams, on absolute deadlines."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.due: list[Callable[[], None]] = []
        self._running = False

    def watch(self, call: Callable[[], None]) -> None:
        self.due.append(call)
        if not self._running:
            self._running = True
            loop = asyncio.get_running_loop()
            loop.call_at(loop.time() + self.interval, self._tick, loop.time() + self.interval)

    def _tick(self, deadline: float) -> None:
        due = self.due
        self.due = []
        for call in due:
            call()
        loop = asyncio.get_running_loop()
        following = max(deadline + self.interval, loop.time())
        loop.call_at(following, self._tick, following)


def bare(tokens: int, tick: float) -> App:
    ticker = Ticker(tick)

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        loop = asyncio.get_running_loop()
        for _token in range(tokens):
            due: asyncio.Future[None] = loop.create_future()
            ticker.watch(lambda due=due: due.set_result(None))
            await due
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    return app


def dragoman(tokens: int, tick: float) -> App:
    from dragoman.constraints.bounded_compiler import BoundedCompiler
    from dragoman.core.capabilities import Capabilities, Feature
    from dragoman.core.engine import Health
    from dragoman.core.events import FinishReason
    from dragoman.core.token_engine import Ended, OutputCallback, Sampled, Scheduled, TokenRequest
    from dragoman.engines import tiny
    from dragoman.parsers import registry
    from dragoman.pipeline.detokenizer import Vocabulary
    from dragoman.pipeline.engine_backends import TokenBackend
    from dragoman.pipeline.model_registry import Models
    from dragoman.pipeline.output_formats import OutputFormats
    from dragoman.pipeline.served_model import ServedModel
    from dragoman.prompts.hf_tokenizer import load_tokenizer
    from dragoman.prompts.render import Renderer
    from dragoman.prompts.template_loader import load_template
    from dragoman.serving.app import build_asgi_app
    from dragoman.serving.serving_options import ServingOptions

    tokenizer = load_tokenizer(tiny.find_bundled_model())
    word = tokenizer.encode(" word", special=False)[0]
    ticker = Ticker(tick)

    class Metronome:
        """A token engine that costs nothing but its tick."""

        capabilities = Capabilities(
            features=frozenset(Feature), parameters=frozenset({"temperature"})
        )

        def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
            left = tokens

            def step() -> None:
                nonlocal left
                left -= 1
                deliver(Sampled(request.id, word))
                if left:
                    ticker.watch(step)
                else:
                    deliver(Ended(request.id, FinishReason.LENGTH))

            deliver(Scheduled(request.id, 0))
            ticker.watch(step)

        def abort(self, id: str) -> None: ...

        async def start(self) -> None: ...

        async def stop(self) -> None: ...

        def health(self) -> Health:
            return Health()

    template = load_template(tiny.find_bundled_model())
    assert template is not None
    reasoning, tools = registry.detect_formats(template.source, tokenizer.special_tokens.keys())
    backend = TokenBackend(
        Metronome(),
        tokenizer,
        Vocabulary(tokenizer),
        BoundedCompiler(tokenizer, [2]),
        frozenset({2}),
        Renderer(template, tokenizer),
    )
    model = ServedModel(
        "tiny",
        backend,
        4096,
        0,
        formats=OutputFormats(
            registry.find_reasoning_format(reasoning or "none"),
            registry.find_tool_format(tools or "none"),
        ),
    )
    return build_asgi_app(Models([model]), options=ServingOptions(allowed_hosts=("*",)))  # pyright: ignore[reportReturnType]


def with_cpu(app: App) -> App:
    """Answers /cpu with the process's CPU seconds; everything else is the app's."""

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != "/cpu":
            await app(scope, receive, send)
            return
        body = str(time.process_time()).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"%d" % len(body))],
            }
        )
        await send({"type": "http.response.body", "body": body})

    return outer


def serve(kind: str, port: int, tokens: int, tick: float) -> None:
    app = with_cpu({"bare": bare, "dragoman": dragoman}[kind](tokens, tick))
    http: Any = "httptools"
    if kind == "dragoman":
        from dragoman.http.server_connection import Http11ProtocolFactory

        http = Http11ProtocolFactory()
    uvicorn.run(
        app,
        port=port,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        http=http,
        loop="uvloop",
    )


async def request(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
        f"application/json\r\nconnection: close\r\n"
    )
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    data = await reader.read(-1)
    writer.close()
    return data


async def cpu(port: int) -> float:
    return float((await request(port, "GET", "/cpu")).rpartition(b"\r\n\r\n")[2])


async def stay_awake() -> None:
    while True:  # noqa: ASYNC110 - to spin is its purpose
        await asyncio.sleep(0)


async def measure(port: int, streams: int, tokens: int) -> float:
    """CPU microseconds a streamed event."""
    call = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "go"}],
        "stream": True,
        "max_tokens": tokens,
    }
    body = json.dumps(call).encode()
    # A reader that sleeps has to be woken by the writer's system call, and the slower
    # writer would pay for that more often: this one stays awake.
    awake = asyncio.create_task(stay_awake())
    before = await cpu(port)
    answers = await asyncio.gather(
        *(request(port, "POST", "/v1/chat/completions", body) for _ in range(streams))
    )
    spent = await cpu(port) - before
    awake.cancel()
    for answer in answers:
        # role, finish and [DONE] come on top of the tokens; the bare app has [DONE]
        # alone.
        assert answer.count(b"data: ") >= tokens, answer[:500]
    return spent / (streams * tokens) * 1e6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def ready(port: int) -> None:
    for _ in range(200):
        try:
            await cpu(port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            return
    raise RuntimeError("the server did not start")


async def compare(ports: dict[str, int], streams: int, tokens: int, rounds: int) -> None:
    for port in ports.values():
        await ready(port)
        await measure(port, 8, tokens)
    best: dict[str, list[float]] = {kind: [] for kind in ports}
    for _ in range(rounds):
        for kind, port in ports.items():
            best[kind].append(await measure(port, streams, tokens))
    for kind, values in best.items():
        print(
            f"{kind:10} {min(values):7.2f} us/token (rounds: "
            f"{', '.join(f'{value:.2f}' for value in values)})"
        )
    print(f"ratio      {min(best['dragoman']) / min(best['bare']):7.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--tick", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    ports = {"bare": free_port(), "dragoman": free_port()}
    servers = [
        spawn.Process(target=serve, args=(kind, port, options.tokens, options.tick), daemon=True)
        for kind, port in ports.items()
    ]
    for server in servers:
        server.start()
    try:
        asyncio.run(compare(ports, options.streams, options.tokens, options.rounds))
    finally:
        for server in servers:
            server.terminate()


if __name__ == "__main__":
    main()
