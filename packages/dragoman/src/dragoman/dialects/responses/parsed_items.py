"""The parsed items of an input."""

from __future__ import annotations

from msgspec import Struct

from ...core.message import (
    Audio,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    ToolResult,
)
from ...core.server_tools import ListedTool
from .wire import (
    ReasoningConfig,
    ResponsesWireTool,
    TextOptions,
)

ResultPart = Text | Image | Audio | File
"""A part of a tool's result."""


class AssistantParts(Struct, frozen=True):
    """The text of an assistant's message."""

    parts: tuple[Part, ...]


class ItemCall(Struct, frozen=True):
    """A call of a tool.

    kind: the item's type if the client runs the tool; `name` is then empty.
    """

    id: str
    arguments: str
    name: str = ""
    namespace: str | None = None
    kind: str = ""
    custom: bool = False


class HostedCall(Struct, frozen=True):
    """A call of a tool that another server ran.

    result: None if it is an item of its own.
    server: label of its MCP server; empty for other tools.
    approval: id of the request for its approval, if it needed one.
    """

    id: str
    name: str
    arguments: str
    result: ToolResult | None
    server: str = ""
    approval: str | None = None


class FreeOutput(Struct, frozen=True):
    """A tool output without a call."""

    name: str
    namespace: str | None
    content: tuple[ResultPart, ...]


class LoadedTools(Struct, frozen=True):
    """Tools that can be called from here on.

    call_id: id of the search call that found them, if the client ran the search.
    """

    tools: list[ResponsesWireTool]
    call_id: str | None = None
    is_error: bool = False


class ListedTools(Struct, frozen=True):
    """The tools that an MCP server has listed."""

    server: str
    tools: tuple[ListedTool, ...]


class ApprovalRequest(Struct, frozen=True):
    """A call of an MCP tool that waits for the client's approval."""

    id: str
    server: str
    name: str
    arguments: str


class ApprovalResponse(Struct, frozen=True):
    """The client's answer to an `ApprovalRequest`."""

    request: str
    approves: bool
    reason: str | None


class ItemSummary(Struct, frozen=True):
    """The decrypted summary of a compaction."""

    text: str


class ConfigurationUpdate(Struct, frozen=True):
    """Settings that replace the body's."""

    reasoning: ReasoningConfig | None = None
    text: TextOptions | None = None


ParsedItem = (
    Message
    | AssistantParts
    | Reasoning
    | ItemCall
    | HostedCall
    | ToolResult
    | FreeOutput
    | LoadedTools
    | ListedTools
    | ApprovalRequest
    | ApprovalResponse
    | ItemSummary
    | ConfigurationUpdate
    | None
)
"""A parsed item, independent of those before it.

A Message is never the assistant's; None adds nothing to the prompt.
"""
