"""Messages and their parts: what goes into a prompt, and (as parts of a `Reply`) what comes out of it.

A part that a model made can carry its `tokens`: the sampled ids, so that a continued conversation need
not tokenise its own past again.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from .events import Token


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class InlineMedia(Struct, frozen=True, tag=True):
    """Media that came with the request. media_type: as in MIME, `image/png`; None where it was not said."""

    data: bytes
    media_type: str | None = None


class RemoteMedia(Struct, frozen=True, tag=True):
    """Media behind a URL. Whether it may be fetched is the server's policy, not the dialect's."""

    url: str


class UploadedMedia(Struct, frozen=True, tag=True):
    """Media that was uploaded before."""

    file_id: str


MediaSource = InlineMedia | RemoteMedia | UploadedMedia


class Text(Struct, frozen=True, tag=True):
    text: str
    tokens: tuple[Token, ...] = ()


class Reasoning(Struct, frozen=True, tag=True):
    text: str
    tokens: tuple[Token, ...] = ()


class Refusal(Struct, frozen=True, tag=True):
    text: str
    tokens: tuple[Token, ...] = ()


class ToolCall(Struct, frozen=True, tag=True):
    """arguments: JSON text as the model wrote it (never re-serialised), or a custom tool's raw input."""

    id: str
    name: str
    arguments: str
    tokens: tuple[Token, ...] = ()
    custom: bool = False


class Image(Struct, frozen=True, tag=True):
    source: MediaSource
    detail: str | None = None


class Audio(Struct, frozen=True, tag=True):
    source: MediaSource
    format: str | None = None


class File(Struct, frozen=True, tag=True):
    source: MediaSource
    filename: str | None = None


class ToolResult(Struct, frozen=True, tag=True):
    """What a tool answered. Its content is text and media only."""

    call_id: str
    content: tuple[Text | Image | Audio | File, ...]
    is_error: bool = False


Part = Text | Reasoning | Refusal | ToolCall | Image | Audio | File | ToolResult


class Message(Struct, frozen=True):
    """One turn. `name` tells participants of one role apart, or names the tool of a result."""

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None


class FunctionTool(Struct, frozen=True, tag=True):
    """parameters: a JSON Schema as JSON text; None where the function takes nothing declared.

    strict: arguments must follow the schema exactly; None leaves it to the server.
    """

    name: str
    description: str | None = None
    parameters: str | None = None
    strict: bool | None = None


class CustomTool(Struct, frozen=True, tag=True):
    """A tool that takes free text, possibly bound by a grammar (`lark` or `regex`)."""

    name: str
    description: str | None = None
    syntax: str | None = None
    definition: str | None = None


Tool = FunctionTool | CustomTool


class ToolChoice(Struct, frozen=True):
    """mode: none | auto | required. names: only these may be called; None means all that are declared.

    `named` is a choice of one function by name; it differs from required with one allowed name only in
    the finish reason that OpenAI gives it.
    """

    mode: str = "auto"
    names: tuple[str, ...] | None = None
    is_named: bool = False
