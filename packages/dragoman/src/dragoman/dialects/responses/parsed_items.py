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
    """

    id: str
    name: str
    arguments: str
    result: ToolResult | None


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
    | ItemSummary
    | ConfigurationUpdate
    | None
)
"""A parsed item, independent of those before it.

A Message is never the assistant's; None adds nothing to the prompt.
"""
