"""What the server needs of a tool server, whatever the protocol between them.

Nothing here imports a library of a protocol: implementations are found by the operator's
settings, and are imported only when a request uses one.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

from msgspec import Raw, Struct

from ..core.json_types import JsonObject
from ..core.server_tools import ToolImage


class ServerTool(Struct, frozen=True, kw_only=True):
    """A tool as its server lists it.

    name: unique within the server.
    input_schema: JSON Schema of the arguments, as the server wrote it.
    read_only: whether the server says that calls change nothing; None if it says
        nothing.
    idempotent: whether the server says that a repeated call changes nothing more; None
        if it says nothing.
    annotations: all annotations as the server wrote them, these two included. They are
        hints of the server, which may lie.
    """

    name: str
    input_schema: Raw
    description: str | None = None
    read_only: bool | None = None
    idempotent: bool | None = None
    annotations: JsonObject | None = None

    @property
    def is_repeatable(self) -> bool:
        """Whether a call whose outcome is unknown may be made again."""
        return self.read_only is True or self.idempotent is True


class ToolServerRequest(Struct, frozen=True, kw_only=True):
    """Which server a client wants to use.

    label: the name of the server within the request.
    server_url: where the server is; None means the operator's server of that label.
    authorization: token for the server.
    headers: further headers for the server.
    owner: name of the client's API key; None without keys.

    `authorization` and `headers` are secrets: they must not be stored, returned or
    logged, so they are not part of the representation.
    """

    label: str
    server_url: str | None = None
    authorization: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    owner: str | None = None

    def __repr__(self) -> str:
        return (
            f"ToolServerRequest(label={self.label!r}, server_url={self.server_url!r}, "
            f"owner={self.owner!r})"
        )


class ToolCallResult(Struct, frozen=True, kw_only=True):
    """What a tool returned.

    text: the text parts, joined by newlines. It is untrusted: it may enter a prompt only
        as the text of a tool message.
    structured_content: the result as a JSON object, for tools with an output schema.
    is_error: whether the tool says that it failed. The model should see the text.
    images: as the server sent them, in any format.
    """

    text: str
    structured_content: JsonObject | None = None
    is_error: bool = False
    images: tuple[ToolImage, ...] = ()


class ToolServerErrorKind(StrEnum):
    """Why a tool server could not be used."""

    CONNECTION = "connection_error"
    HTTP = "http_error"
    PROTOCOL = "protocol_error"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    """The operator's settings do not allow it; nothing was sent."""


class ToolServerError(Exception):
    """A tool server could not be reached, or violated its protocol or a limit.

    kind: what happened.
    message: text for the client, without secrets.
    code: the status of an HTTP response, or the code of the server's JSON-RPC error.
    """

    def __init__(self, kind: ToolServerErrorKind, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.code = code


class ToolServer(Protocol):
    """A connection to a tool server."""

    async def list_tools(self) -> tuple[ServerTool, ...]:
        """Return the tools of all pages.

        Raises:
            ToolServerError: the list is not available or exceeds a limit.
        """
        ...

    # Not `asyncio.timeout` around it: an implementation tells the server of the limit too.
    async def call(
        self,
        name: str,
        arguments: str,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> ToolCallResult:
        """Call a tool. Cancelling the coroutine cancels the call.

        Args:
            name: one of the tools listed.
            arguments: a JSON object, as the model wrote it.
            timeout: seconds after which the call fails.

        Raises:
            ToolServerError: there is no result. Whether the tool ran is unknown, except
                if the kind is REFUSED.
        """
        ...


class ToolServers(Protocol):
    """The tool servers that this process can use; one for the lifetime of the process."""

    def open(self, request: ToolServerRequest) -> AbstractAsyncContextManager[ToolServer]:
        """Connect to a server, or use a connection that is open.

        Raises:
            ToolServerError: on entry, if the server is not allowed or not reachable.
        """
        ...

    async def close(self) -> None:
        """Close all connections, and end the servers that this process has started."""
        ...
