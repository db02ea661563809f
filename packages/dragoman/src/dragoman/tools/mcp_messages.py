"""The messages of MCP that a client of tools needs, as JSON-RPC.

https://modelcontextprotocol.io/specification/2025-11-25

What a server writes is checked here: it may be wrong, or made to exhaust this process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from ..core.json_types import JsonValue
from ..core.server_tools import ToolImage
from .interface import ServerTool, ToolCallResult, ToolServerError, ToolServerErrorKind

PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The versions that this client speaks, newest first."""
METHOD_NOT_FOUND = -32601
MAX_DEPTH = 64
"""Maximum nesting of a tool's schema or of a result."""
MAX_SCHEMA_BYTES = 64 * 1024
"""Maximum size of one tool's schema, which enters the prompt."""
MAX_DESCRIPTION = 16 * 1024
"""Maximum characters of one tool's description, which enters the prompt."""
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}", re.ASCII)
"""The names that the specification allows, and `/`, which some servers use."""

T = TypeVar("T")


class McpMessage(Struct, frozen=True, kw_only=True):
    """A message from a server: a response has no method, a notification no id."""

    id: int | str | None = None
    method: str | None = None
    result: Raw = Raw()
    error: Raw = Raw()


class _Error(Struct, frozen=True):
    code: int = 0
    message: str = ""


class InitializeResult(Struct, frozen=True, rename="camel"):
    """What a server answers to `initialize`."""

    protocol_version: str


class _Annotations(Struct, frozen=True, rename="camel"):
    read_only_hint: bool | None = None
    idempotent_hint: bool | None = None


class _Tool(Struct, frozen=True, rename="camel"):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: dict[str, Any] | None = None


class _ToolPage(Struct, frozen=True, rename="camel"):
    tools: list[_Tool]
    next_cursor: str | None = None


class _Resource(Struct, frozen=True, rename="camel"):
    uri: str = ""
    text: str | None = None
    mime_type: str | None = None


class _Content(Struct, frozen=True, rename="camel"):
    type: str
    text: str | None = None
    uri: str | None = None
    mime_type: str | None = None
    data: str | None = None
    resource: _Resource | None = None


class _CallResult(Struct, frozen=True, rename="camel"):
    content: list[_Content] = []
    structured_content: dict[str, Any] | None = None
    is_error: bool = False


def encode_request(id: int, method: str, params: Mapping[str, JsonValue]) -> bytes:
    return msgspec.json.encode(
        {"jsonrpc": "2.0", "id": id, "method": method, "params": dict(params)}
    )


def encode_notification(method: str, params: Mapping[str, JsonValue] | None = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return msgspec.json.encode(message | ({"params": dict(params)} if params else {}))


def encode_answer(request: McpMessage) -> bytes:
    """Return the response to a request of the server. This client offers nothing but
    `ping`.
    """
    answer: dict[str, Any] = (
        {"result": {}}
        if request.method == "ping"
        else {"error": {"code": METHOD_NOT_FOUND, "message": "Method not found"}}
    )
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request.id} | answer)


def decode_message(data: bytes) -> McpMessage:
    """Raises ToolServerError if it is no message."""
    return _decode(data, McpMessage, "a message")


def decode_result(message: McpMessage, type: type[T], what: str) -> T:
    """Decode the result of a response.

    what: what the result is, for errors.

    Raises:
        ToolServerError: the response is an error, or the result is invalid.
    """
    if bytes(message.error) not in (b"", b"null"):
        error = _decode(message.error, _Error, "an error")
        text = error.message[:1000] or f"error {error.code}"
        raise ToolServerError(ToolServerErrorKind.PROTOCOL, text, error.code)
    return _decode(message.result, type, what)


def read_tool_page(message: McpMessage) -> tuple[list[ServerTool], str | None]:
    """Return the tools of a page, and the cursor of the next page.

    Raises:
        ToolServerError: the page is invalid, or a tool exceeds a limit.
    """
    page = decode_result(message, _ToolPage, "a list of tools")
    return list(map(_read_tool, page.tools)), page.next_cursor or None


def read_call_result(message: McpMessage, max_bytes: int) -> ToolCallResult:
    """Read the result of a call.

    max_bytes: maximum size of the text and of the structured content. Images are limited
        by the size of the message.

    Raises:
        ToolServerError: the result is invalid or larger.
    """
    result = decode_result(message, _CallResult, "a result of a call")
    text = "\n".join(map(_describe_content, result.content))
    structured = result.structured_content
    if structured is not None and _is_too_deep(structured):
        raise _build_error(f"The result nests deeper than {MAX_DEPTH} levels.")
    size = len(text.encode()) + (0 if structured is None else len(msgspec.json.encode(structured)))
    if size > max_bytes:
        raise ToolServerError(
            ToolServerErrorKind.TOO_LARGE,
            f"The result has {size} bytes; at most {max_bytes} are allowed.",
        )
    images = (
        ToolImage(part.mime_type, part.data)
        for part in result.content
        if part.type == "image" and part.mime_type and part.data
    )
    return ToolCallResult(
        text=text,
        structured_content=structured,
        is_error=result.is_error,
        images=tuple(images),
    )


def _read_tool(tool: _Tool) -> ServerTool:
    if not _NAME.fullmatch(tool.name):
        raise _build_error(f"The tool name {tool.name[:64]!r} is invalid.")
    if _is_too_deep(tool.input_schema) or _is_too_deep(tool.annotations or {}):
        raise _build_error(f"The schema of {tool.name} nests deeper than {MAX_DEPTH} levels.")
    schema = msgspec.json.encode(tool.input_schema)
    annotations = tool.annotations
    size = len(schema) + (0 if annotations is None else len(msgspec.json.encode(annotations)))
    if size > MAX_SCHEMA_BYTES:
        raise _build_error(f"The schema of {tool.name} has more than {MAX_SCHEMA_BYTES} bytes.")
    if len(tool.description or "") > MAX_DESCRIPTION:
        raise _build_error(
            f"The description of {tool.name} has more than {MAX_DESCRIPTION} characters."
        )
    try:
        hints = msgspec.convert(annotations or {}, _Annotations)
    except msgspec.ValidationError:
        hints = _Annotations()
    return ServerTool(
        name=tool.name,
        input_schema=Raw(schema),
        description=tool.description,
        read_only=hints.read_only_hint,
        idempotent=hints.idempotent_hint,
        annotations=annotations,
    )


def _describe_content(part: _Content) -> str:
    """Return the text of a part; of one that is no text, a line that says so."""
    if part.text is not None:
        return part.text
    resource = part.resource
    if resource is not None and resource.text is not None:
        return resource.text
    uri = part.uri or ("" if resource is None else resource.uri)
    kind = part.mime_type or (None if resource is None else resource.mime_type)
    return f"[{part.type}{f' {uri}' if uri else ''}{f', {kind}' if kind else ''}]"


def _is_too_deep(value: JsonValue) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            member
            for each in level
            if isinstance(each, dict | list)
            for member in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _decode(data: bytes | Raw, type: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise _build_error(f"The server sent {what} that is invalid.") from None


def _build_error(message: str) -> ToolServerError:
    return ToolServerError(ToolServerErrorKind.PROTOCOL, message)
