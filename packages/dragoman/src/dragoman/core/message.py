"""Messages and their parts: the input of a prompt and, as parts of a `Reply`, the
output of a model.

A generated part can carry its sampled `tokens`, which saves tokenizing the history
again when a conversation continues.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from .errors import RequestError
from .events import Token
from .server_tools import ToolOutcome


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class InlineMedia(Struct, frozen=True, tag=True):
    """Media inside the request.

    media_type: MIME type such as `image/png`; None if not declared.
    """

    data: bytes
    media_type: str | None = None


class RemoteMedia(Struct, frozen=True, tag=True):
    """Media behind a URL. The server, not the dialect, decides whether it may be
    fetched.
    """

    url: str


class UploadedMedia(Struct, frozen=True, tag=True):
    """Media from an earlier upload."""

    file_id: str


MediaSource = InlineMedia | RemoteMedia | UploadedMedia


class Text(Struct, frozen=True, tag=True):
    """Text of a prompt or an answer.

    Attributes:
        text: the text.
        tokens: the tokens that were sampled for it; empty if it was not generated here.
    """

    text: str
    tokens: tuple[Token, ...] = ()


class SealKind(StrEnum):
    """The prefix of a seal, which names its vendor and kind.

    ANTHROPIC: the signature of a thinking block.
    ANTHROPIC_REDACTED: the data of a redacted_thinking block.
    OPENAI: the encrypted content of a reasoning item.
    GEMINI: the thought signature of a part, in Base64.
    OPENROUTER: another vendor's signature or encrypted content, as the JSON object of
        an entry of `reasoning_details` without its text.
    """

    ANTHROPIC = "anthropic:"
    ANTHROPIC_REDACTED = "anthropic-redacted:"
    OPENAI = "openai:"
    GEMINI = "gemini:"
    OPENROUTER = "openrouter:"

    def read(self, seal: str) -> str | None:
        """Return the vendor's own data; None if the seal is of another kind."""
        return seal.removeprefix(self) if seal.startswith(self) else None


class Reasoning(Struct, frozen=True, tag=True):
    """Reasoning of the model.

    Attributes:
        text: the text.
        tokens: the tokens that were sampled for it; empty if it was not generated here.
        seal: a SealKind, followed by data with which an upstream's vendor recognizes
            its own reasoning. Clients must send it back unchanged. Sealed reasoning may
            have no text.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    seal: str = ""


class Refusal(Struct, frozen=True, tag=True):
    """A refusal to answer, which OpenAI's APIs separate from text.

    Attributes:
        text: the text.
        tokens: the tokens that were sampled for it; empty if it was not generated here.
    """

    text: str
    tokens: tuple[Token, ...] = ()


class ToolCall(Struct, frozen=True, tag=True):
    """A call of a tool by the model.

    Attributes:
        id: id of the call, to which the result refers.
        name: name of the tool.
        arguments: JSON text as the model wrote it (never re-serialized), or a custom
            tool's raw input.
        tokens: the tokens that were sampled for it; empty if it was not generated here.
        custom: the tool takes free text instead of JSON.
        outcome: what the call returned, if this server made it.
    """

    id: str
    name: str
    arguments: str
    tokens: tuple[Token, ...] = ()
    custom: bool = False
    outcome: ToolOutcome | None = None


class Image(Struct, frozen=True, tag=True):
    """An image in a prompt.

    Attributes:
        source: where its bytes are.
        detail: OpenAI's `low`, `high` or `auto`.
    """

    source: MediaSource
    detail: str | None = None


class Audio(Struct, frozen=True, tag=True):
    """Audio in a prompt.

    Attributes:
        source: where its bytes are.
        format: OpenAI's `wav` or `mp3`.
    """

    source: MediaSource
    format: str | None = None


class File(Struct, frozen=True, tag=True):
    """A file in a prompt.

    Attributes:
        source: where its bytes are.
        filename: its name, if the client gives one.
    """

    source: MediaSource
    filename: str | None = None


class ToolResult(Struct, frozen=True, tag=True):
    """The result of a tool call. Its content is text and media only.

    Attributes:
        call_id: id of the call.
        content: the parts of the result.
        is_error: the tool failed.
        answers_call: its call is in the conversation; False in formats without ids,
            where the call may be missing.
    """

    call_id: str
    content: tuple[Text | Image | Audio | File, ...]
    is_error: bool = False
    answers_call: bool = True


Part = Text | Reasoning | Refusal | ToolCall | Image | Audio | File | ToolResult


def build_misplaced_error(part: Part) -> RequestError:
    """Return the error for a tool result in an assistant message, or for another part,
    such as a call, that only an assistant message can contain.
    """
    if isinstance(part, ToolResult):
        return RequestError("An assistant message cannot contain tool results.", param="messages")
    return RequestError("Only an assistant message can contain tool calls.", param="messages")


class Message(Struct, frozen=True):
    """One turn of a conversation.

    Attributes:
        role: its author.
        parts: its content, in order.
        name: distinguishes participants of one role, or names the tool of a result.
    """

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None


class FunctionTool(Struct, frozen=True, tag=True):
    """A function that the model may call.

    Attributes:
        name: its name.
        description: what it does, for the model.
        parameters: a JSON Schema as JSON text; None if it declares no parameters.
        strict: arguments must follow the schema exactly; None is the server's default.
    """

    name: str
    description: str | None = None
    parameters: str | None = None
    strict: bool | None = None


class CustomTool(Struct, frozen=True, tag=True):
    """A tool that takes free text, optionally constrained by a grammar.

    Attributes:
        name: its name.
        description: what it does, for the model.
        syntax: `lark` or `regex`; None is unconstrained.
        definition: the grammar in this syntax.
    """

    name: str
    description: str | None = None
    syntax: str | None = None
    definition: str | None = None


Tool = FunctionTool | CustomTool


class ToolChoice(Struct, frozen=True):
    """The tools that the model may or must call.

    Attributes:
        mode: none | auto | required.
        names: the callable tools; None is all declared ones.
        is_named: the client named one tool, not a list of allowed ones. Then at
            most one call is made, OpenAI's finish reason is `stop`, and upstreams
            get the name itself.
    """

    mode: str = "auto"
    names: tuple[str, ...] | None = None
    is_named: bool = False
