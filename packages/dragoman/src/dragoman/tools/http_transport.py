"""MCP over streamable HTTP: each message is a POST, whose response is JSON or a stream of
server-sent events.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from dragoman_http import (
    HttpClientError,
    HttpResponse,
    HttpTransport,
    InvalidResponse,
    SseDecoder,
)

from .._version import VERSION
from .interface import ToolServerError, ToolServerErrorKind
from .mcp_messages import McpMessage, decode_message, encode_answer
from .mcp_session import TOOLS_CHANGED

MAX_UNMATCHED = 10_000
"""Maximum messages of one response besides the expected one."""
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}", re.ASCII)
RESERVED_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "mcp-protocol-version",
        "mcp-session-id",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that belong to the connection or to the protocol."""


class StreamableHttpTransport:
    """A session over HTTP; implements `McpTransport`.

    client: sends the requests; it must not follow redirects, nor decode bodies. It is
        shared, so it stays open.
    headers: sent with each message; they may contain secrets.
    max_body: maximum bytes of a response.
    find_address: returns the address to connect to, for the session's lifetime; None
        leaves it to the client.
    on_tools_changed: called when the server says that its tools have changed.
    """

    def __init__(
        self,
        client: HttpTransport,
        url: str,
        headers: list[tuple[str, str]],
        *,
        max_body: int,
        find_address: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self.is_closed = False
        self.on_tools_changed: Callable[[], None] = lambda: None
        self._client = client
        self._url = url
        self._headers = headers
        self._max_body = max_body
        self._find_address = find_address
        self._address: str | None = None
        self._session_id: str | None = None
        self._version: str | None = None

    async def open(self) -> None:
        if self._find_address is not None:
            self._address = await self._find_address()

    async def exchange(self, id: int, request: bytes) -> McpMessage:
        response = await self._post(request)
        try:
            self._read_session_id(response)
            if _get_media_type(response) == "text/event-stream":
                return await self._read_events(response, id)
            body = await self._read_body(response)
        except HttpClientError as error:
            raise _translate_error(error) from None
        finally:
            response.close()
        message = decode_message(body)
        if message.method is not None or message.id != id:
            raise ToolServerError(
                ToolServerErrorKind.PROTOCOL, "The server's response is not that of the request."
            )
        return message

    async def send(self, message: bytes) -> None:
        response = await self._post(message)
        response.close(drain=True)

    def set_protocol_version(self, version: str) -> None:
        self._version = version

    async def close(self) -> None:
        self.is_closed = True
        session_id = self._session_id
        self._session_id = None
        if session_id is None:
            return
        try:
            response = await self._client.send(
                "DELETE",
                self._url,
                [*self._build_headers(), ("mcp-session-id", session_id)],
                read_timeout=2.0,
                connect_to=self._address,
            )
            response.close(drain=True)
        except HttpClientError:
            """The server will end the session itself."""

    def _build_headers(self) -> list[tuple[str, str]]:
        headers = [
            ("accept", "application/json, text/event-stream"),
            ("content-type", "application/json"),
        ]
        if not any(name.lower() == "user-agent" for name, _ in self._headers):
            headers.append(("user-agent", f"dragoman/{VERSION}"))
        if self._version is not None:
            headers.append(("mcp-protocol-version", self._version))
        if self._session_id is not None:
            headers.append(("mcp-session-id", self._session_id))
        return [*headers, *self._headers]

    async def _post(self, message: bytes) -> HttpResponse:
        """Send a message. Raises ToolServerError, also for a status other than 2xx."""
        try:
            response = await self._client.send(
                "POST", self._url, self._build_headers(), message, connect_to=self._address
            )
        except HttpClientError as error:
            raise _translate_error(error) from None
        except ValueError:
            # The client's message would name the header, but also quote it.
            raise ToolServerError(
                ToolServerErrorKind.REFUSED, "A header or the URL of the server is malformed."
            ) from None
        status = response.status
        if 200 <= status < 300:
            return response
        response.close()
        if status == 404 and self._session_id is not None:
            # The server has ended the session; nothing was called.
            self.is_closed = True
            self._session_id = None
        if 300 <= status < 400:
            message_text = f"The server redirects (HTTP {status}); redirects are not followed."
        else:
            message_text = f"The server answered with HTTP {status}."
        raise ToolServerError(ToolServerErrorKind.HTTP, message_text, status)

    def _read_session_id(self, response: HttpResponse) -> None:
        session_id = response.headers.get("mcp-session-id")
        if session_id is None or self._session_id is not None:
            return
        if not _SESSION_ID.fullmatch(session_id):
            raise ToolServerError(ToolServerErrorKind.PROTOCOL, "The session id is invalid.")
        self._session_id = session_id

    async def _read_body(self, response: HttpResponse) -> bytes:
        body = await response.read_all(self._max_body)
        if len(body) > self._max_body:
            raise self._build_size_error()
        return body

    async def _read_events(self, response: HttpResponse, id: int) -> McpMessage:
        """Return the response to the request `id`, and answer requests of the server."""
        decoder = SseDecoder(self._max_body)
        size = 0
        n_unmatched = 0
        while (piece := await response.read()) is not None:
            size += len(piece)
            if size > self._max_body:
                raise self._build_size_error()
            for event in decoder.feed(piece):
                message = decode_message(event)
                if message.method is None and message.id == id:
                    return message
                n_unmatched += 1
                if n_unmatched > MAX_UNMATCHED:
                    raise ToolServerError(
                        ToolServerErrorKind.PROTOCOL,
                        "The server sent too many messages without a request.",
                    )
                if message.method == TOOLS_CHANGED:
                    self.on_tools_changed()
                elif message.method is not None and message.id is not None:
                    await self.send(encode_answer(message))
        raise ToolServerError(
            ToolServerErrorKind.CONNECTION, "The server ended the stream without a response."
        )

    def _build_size_error(self) -> ToolServerError:
        return ToolServerError(
            ToolServerErrorKind.TOO_LARGE,
            f"The server's response has more than {self._max_body} bytes.",
        )


def _get_media_type(response: HttpResponse) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _translate_error(error: HttpClientError) -> ToolServerError:
    if isinstance(error, InvalidResponse):
        return ToolServerError(ToolServerErrorKind.PROTOCOL, "The server's response is invalid.")
    return ToolServerError(
        ToolServerErrorKind.CONNECTION, "The server is not reachable, or closed the connection."
    )
