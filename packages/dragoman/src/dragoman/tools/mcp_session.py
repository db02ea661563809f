"""A session with an MCP server, over any transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import msgspec

from .._version import VERSION
from ..core.json_types import JsonObject, JsonValue
from .interface import ServerTool, ToolCallResult, ToolServerError, ToolServerErrorKind
from .mcp_messages import (
    PROTOCOL_VERSIONS,
    InitializeResult,
    McpMessage,
    decode_result,
    encode_notification,
    encode_request,
    read_call_result,
    read_tool_page,
)

MAX_TOOLS = 500
"""Maximum tools of one server."""
MAX_LIST_BYTES = 1024 * 1024
"""Maximum size of the schemas and descriptions of one server."""
MAX_PAGES = 100
LIST_TTL = 60.0
"""Seconds for which a list of tools is used again."""
CANCEL_TIMEOUT = 5.0
"""Seconds to tell a server that a call was cancelled."""
TOOLS_CHANGED = "notifications/tools/list_changed"


class McpTransport(Protocol):
    """A connection that carries the messages of one session.

    is_closed: whether it can carry no further message.
    """

    is_closed: bool

    async def open(self) -> None:
        """Connect. Raises ToolServerError."""
        ...

    async def exchange(self, id: int, request: bytes) -> McpMessage:
        """Send a request, and return its response. Raises ToolServerError."""
        ...

    async def send(self, message: bytes) -> None:
        """Send a message without a response. Raises ToolServerError."""
        ...

    def set_protocol_version(self, version: str) -> None:
        """Take note of the version that the server has chosen."""
        ...

    async def close(self) -> None: ...


class SessionLimits(msgspec.Struct, frozen=True):
    """Limits of a session: seconds to connect and to list, seconds of a call, and bytes
    of a call's result.
    """

    connect_timeout: float = 30.0
    call_timeout: float = 60.0
    max_output_bytes: int = 1_000_000


class McpSession:
    """A session with a server; implements `ToolServer`.

    transport: not open yet.
    now: a monotonic clock, in seconds.
    """

    def __init__(
        self, transport: McpTransport, limits: SessionLimits, now: Callable[[], float]
    ) -> None:
        self._transport = transport
        self._limits = limits
        self._now = now
        self._next_id = 0
        self._tools: tuple[ServerTool, ...] = ()
        self._tools_expire = float("-inf")
        self._list_lock = asyncio.Lock()
        self._cancellations: set[asyncio.Task[None]] = set()

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closed

    async def open(self) -> None:
        """Connect and initialize. Raises ToolServerError."""
        params: JsonObject = {
            "protocolVersion": PROTOCOL_VERSIONS[0],
            "capabilities": {},
            "clientInfo": {"name": "dragoman", "version": VERSION},
        }
        try:
            async with _limit_time(self._limits.connect_timeout):
                await self._transport.open()
                response = await self._request("initialize", params)
                version = decode_result(
                    response, InitializeResult, "an answer to 'initialize'"
                ).protocol_version
                if version not in PROTOCOL_VERSIONS:
                    raise ToolServerError(
                        ToolServerErrorKind.PROTOCOL,
                        f"The server speaks version {version[:32]!r} of MCP; supported are "
                        f"{', '.join(PROTOCOL_VERSIONS)}.",
                    )
                self._transport.set_protocol_version(version)
                await self._transport.send(encode_notification("notifications/initialized"))
        except BaseException:
            await self.close()
            raise

    async def list_tools(self) -> tuple[ServerTool, ...]:
        async with self._list_lock, _limit_time(self._limits.connect_timeout):
            if self._now() >= self._tools_expire:
                self._tools = await self._list_pages()
                self._tools_expire = self._now() + LIST_TTL
            return self._tools

    def expire_tools(self) -> None:
        """List the tools again when they are needed next."""
        self._tools_expire = float("-inf")

    async def call(
        self,
        name: str,
        arguments: str,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> ToolCallResult:
        limits = self._limits
        params: JsonObject = {"name": name, "arguments": msgspec.json.decode(arguments)}
        async with _limit_time(min(timeout, limits.call_timeout)):
            response = await self._request("tools/call", params)
        return read_call_result(response, limits.max_output_bytes)

    async def close(self) -> None:
        for task in tuple(self._cancellations):
            task.cancel()
        await self._transport.close()

    async def _list_pages(self) -> tuple[ServerTool, ...]:
        tools: dict[str, ServerTool] = {}
        size = 0
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params: Mapping[str, JsonValue] = {} if cursor is None else {"cursor": cursor}
            page, next_cursor = read_tool_page(await self._request("tools/list", params))
            size += sum(len(bytes(one.input_schema)) + len(one.description or "") for one in page)
            tools |= {tool.name: tool for tool in page}
            if len(tools) > MAX_TOOLS or size > MAX_LIST_BYTES:
                raise ToolServerError(
                    ToolServerErrorKind.TOO_LARGE,
                    f"The server lists more than {MAX_TOOLS} tools or {MAX_LIST_BYTES} bytes.",
                )
            if next_cursor is None:
                return tuple(tools.values())
            cursor = next_cursor
        raise ToolServerError(
            ToolServerErrorKind.PROTOCOL, f"The list of tools has more than {MAX_PAGES} pages."
        )

    async def _request(self, method: str, params: Mapping[str, JsonValue]) -> McpMessage:
        self._next_id += 1
        id = self._next_id
        try:
            return await self._transport.exchange(id, encode_request(id, method, params))
        except asyncio.CancelledError:
            if method != "initialize" and not self._transport.is_closed:
                task = asyncio.create_task(self._cancel(id))
                self._cancellations.add(task)
                task.add_done_callback(self._cancellations.discard)
            raise

    async def _cancel(self, id: int) -> None:
        """Tell the server that nothing waits for its response any more."""
        message = encode_notification("notifications/cancelled", {"requestId": id})
        with suppress(ToolServerError):
            async with _limit_time(CANCEL_TIMEOUT):
                await self._transport.send(message)


@asynccontextmanager
async def _limit_time(seconds: float) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ToolServerError(
            ToolServerErrorKind.TIMEOUT, f"The server did not answer within {seconds:g} seconds."
        ) from None
