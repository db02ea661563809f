"""A complete server in the test's process: the real app, the real SDK, and a scripted
engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
from starlette.types import ASGIApp, Message, Scope

from dragoman.engines import tiny
from dragoman.engines.scripted import Script, ScriptedEngine, ScriptEntry
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.serving.app import build_asgi_app
from dragoman.serving.request_log import RequestLog
from dragoman.serving.serving_options import ServingOptions


class SequentialIds:
    """A source of predictable ids."""

    def __init__(self) -> None:
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"


class FixedClock:
    """A clock that always shows the same time."""

    def now(self) -> float:
        return 1_700_000_000.0

    def monotonic(self) -> float:
        return 0.0


def load_tiny_tokenizer() -> HfTokenizer:
    return load_tokenizer(tiny.find_bundled_model())


@dataclass
class ServerHarness:
    app: ASGIApp
    engine: ScriptedEngine

    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app), base_url="http://localhost"
        )

    def openai(self, key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key=key, base_url="http://localhost/v1", http_client=self.http(), max_retries=0
        )

    async def post(
        self, path: str, json: object, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        async with self.http() as client:
            return await client.post(path, json=json, headers=headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        async with self.http() as client:
            return await client.get(path, headers=headers)


def build_server(
    *entries: ScriptEntry,
    options: ServingOptions | None = None,
    aliases: Sequence[str] = (),
    request_log: RequestLog | None = None,
    **engine_options: Any,
) -> ServerHarness:
    tokenizer = load_tiny_tokenizer()
    script = Script(tuple(entries))
    engine = ScriptedEngine(script, tokenizer=tokenizer, **engine_options)
    model = ServedModel("m", EventBackend(engine, tokenizer), 4096, 1_700_000_000, tuple(aliases))
    app = build_asgi_app(
        Models([model]),
        options=options,
        clock=FixedClock(),
        ids=SequentialIds(),
        request_log=request_log,
    )
    return ServerHarness(app, engine)


def scope(path: str, headers: Mapping[str, str] | None = None, method: str = "POST") -> Scope:
    header_fields = {"host": "localhost", "content-type": "application/json", **(headers or {})}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in header_fields.items()],
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }


def body(*messages: Message) -> list[bytes]:
    return [message.get("body", b"") for message in messages]
