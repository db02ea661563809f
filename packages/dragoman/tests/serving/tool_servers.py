"""A tool server in the test's process, which implements the protocol of `tools`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from msgspec import Raw
from tests.serving.harness import ServerHarness, load_tiny_tokenizer

from dragoman.engines.scripted import Script, ScriptedEngine, ScriptEntry
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import RandomIdGenerator
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import MemoryStore
from dragoman.tools.interface import (
    ServerTool,
    ToolCallResult,
    ToolServer,
    ToolServerError,
    ToolServerErrorKind,
    ToolServerRequest,
    ToolServers,
)

SCHEMA = Raw(b'{"type":"object","properties":{"city":{"type":"string"}}}')
TOOLS = (
    ServerTool(
        name="look", input_schema=SCHEMA, read_only=True, annotations={"readOnlyHint": True}
    ),
    ServerTool(name="send", input_schema=SCHEMA, description="Sends."),
    ServerTool(name="fail", input_schema=SCHEMA),
    ServerTool(name="lose", input_schema=SCHEMA),
)


class LocalToolServers:
    """Implements `ToolServers` and `ToolServer` without a connection.

    opened: the requests for a connection.
    calls: the names and arguments of the calls.
    """

    def __init__(self) -> None:
        self.opened: list[ToolServerRequest] = []
        self.n_lists = 0
        self.calls: list[tuple[str, str]] = []

    @asynccontextmanager
    async def _open(self, request: ToolServerRequest) -> AsyncGenerator[ToolServer]:
        self.opened.append(request)
        if request.label == "refused":
            raise ToolServerError(ToolServerErrorKind.REFUSED, "The URL is not allowed.")
        if request.label == "down":
            raise ToolServerError(ToolServerErrorKind.CONNECTION, "The server is down.")
        yield self

    def open(self, request: ToolServerRequest) -> AbstractAsyncContextManager[ToolServer]:
        return self._open(request)

    async def close(self) -> None:
        """Nothing is open."""

    async def list_tools(self) -> tuple[ServerTool, ...]:
        self.n_lists += 1
        return TOOLS

    async def call(
        self,
        name: str,
        arguments: str,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> ToolCallResult:
        del timeout
        self.calls.append((name, arguments))
        if name == "lose":
            raise ToolServerError(ToolServerErrorKind.HTTP, "Bad gateway.", 502)
        return ToolCallResult(text=f"result of {name}", is_error=name == "fail")


def build_tool_server(
    *entries: ScriptEntry,
    tool_servers: ToolServers | None = None,
    options: ServingOptions | None = None,
) -> ServerHarness:
    """Build a server with a store that calls the tools of `tool_servers`."""
    tokenizer = load_tiny_tokenizer()
    engine = ScriptedEngine(Script(entries), tokenizer=tokenizer)
    model = ServedModel("m", EventBackend(engine, tokenizer), 4096, 1_700_000_000)
    app = build_asgi_app(
        Models([model]),
        options=options,
        ids=RandomIdGenerator(),
        store=MemoryStore(),
        tool_servers=tool_servers,
    )
    return ServerHarness(app, engine)
