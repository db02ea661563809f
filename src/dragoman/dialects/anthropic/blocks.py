"""Content blocks to the core's parts: text, media, documents, thoughts, tool calls and what they came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw

from ...core.message import File, Image, Inline, Part, Stored, Text, ToolCall, ToolResult
from ...core.message import Source as CoreSource
from ...core.picture import checked_image
from ..body import invalid, json_text, missing, one_of
from ..media import read_base64, read_image_url, read_url
from .thoughts import Thoughts
from .tool_input import INVALID
from .wire import ContentBlock, Source

T = TypeVar("T")
Shown = Text | Image | File
"""What a tool's result or a document can hold."""

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
SHOWN = ("text", "image", "document", "search_result")
HOSTED_CALLS = ("server_tool_use", "mcp_tool_use")
HOSTED_RESULTS = (
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "advisor_tool_result",
    "mcp_tool_result",
)
THOUGHTS = ("thinking", "redacted_thinking")
PASSED_OVER = ("fallback", "mcp_tool_listing")
"""What says nothing to a model."""
CHANGES = ("tool_addition", "tool_removal")
"""These speak of tools, not to the model; see `tools`."""
BILLING = "x-anthropic-billing-header:"
"""Claude Code's first block of `system`. It differs in every request and would spoil every cached prefix."""

_BY_ROLE = {
    "user": (*SHOWN, "tool_result", "compaction"),
    "assistant": ("text", *THOUGHTS, "tool_use", *HOSTED_CALLS, *HOSTED_RESULTS, "compaction", *PASSED_OVER),
    "system": ("text", *CHANGES),
}


def read_content(content: str | list[ContentBlock] | None, role: str, at: str, thoughts: Thoughts) -> Iterator[Part]:
    """A message's parts in order. Raises RequestError with the path of the offending field.

    A hosted tool's result stands among the assistant's own blocks.
    """
    if content is None:
        raise missing(at)
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for i, block in enumerate(content):
        one_of(block.type, _BY_ROLE[role], f"{at}[{i}].type")
        yield from _parts(block, f"{at}[{i}]", thoughts)


def read_system(system: str | list[ContentBlock] | None, *, drop_nonces: bool) -> Iterator[Text]:
    """drop_nonces: leave out what an agent puts there anew with every request."""
    if isinstance(system, str):
        if system:
            yield Text(system)
        return
    for i, block in enumerate(system or ()):
        one_of(block.type, ("text",), f"system[{i}].type")
        text = _given(block.text, f"system[{i}].text")
        if text and not (drop_nonces and text.startswith(BILLING)):
            yield Text(text)


def _parts(block: ContentBlock, at: str, thoughts: Thoughts) -> Iterator[Part]:
    kind = block.type
    if kind in SHOWN:
        yield from _shown(block, at)
    elif kind in ("tool_use", *HOSTED_CALLS):
        yield _call(block, at)
    elif kind == "tool_result":
        result = tuple(_result(block, at))
        yield ToolResult(_given(block.tool_use_id, f"{at}.tool_use_id"), result, bool(block.is_error))
    elif kind in HOSTED_RESULTS:
        told = tuple(_told(block.content, f"{at}.content"))
        yield ToolResult(_given(block.tool_use_id, f"{at}.tool_use_id"), told, bool(block.is_error))
    elif kind in THOUGHTS:
        if kind == "thinking":
            _given(block.thinking, f"{at}.thinking")
        yield from thoughts.read(block, at)
    elif kind == "compaction" and isinstance(block.content, str):
        yield Text(block.content)


def _shown(block: ContentBlock, at: str) -> Iterator[Shown]:
    read: Callable[[ContentBlock, str], Iterator[Shown]]
    match block.type:
        case "text":
            read = _text
        case "image":
            read = _image
        case "document":
            read = _document
        case _:
            read = _search_result
    yield from read(block, at)


def _text(block: ContentBlock, at: str) -> Iterator[Shown]:
    if text := _given(block.text, f"{at}.text"):
        yield Text(text)


def _image(block: ContentBlock, at: str) -> Iterator[Shown]:
    source = _source(block, at)
    kind = one_of(source.type, ("base64", "url", "file"), f"{at}.source.type")
    if kind == "base64":
        media_type = one_of(
            _given(source.media_type, f"{at}.source.media_type"), IMAGE_TYPES, f"{at}.source.media_type"
        )
        param = f"{at}.source.data"
        yield Image(checked_image(read_base64(_given(source.data, param), media_type, param), param))
    elif kind == "file":
        yield Image(Stored(_given(source.file_id, f"{at}.source.file_id")))
    else:
        yield Image(read_image_url(_given(source.url, f"{at}.source.url"), f"{at}.source.url"))


def _document(block: ContentBlock, at: str) -> Iterator[Shown]:
    """Its title and context go before it, since a text has no other place for them."""
    source, param = _source(block, at), f"{at}.source"
    kind = one_of(source.type, ("text", "base64", "content", "url", "file"), f"{param}.type")
    for told in (block.title, block.context):
        if told:
            yield Text(told)
    match kind:
        case "text":
            yield Text(_given(source.data, f"{param}.data"))
        case "base64":
            yield _inline_document(source, block.title, param)
        case "content":
            yield from _inner(_given(source.content, f"{param}.content"), ("text", "image"), f"{param}.content")
        case _:
            yield File(_elsewhere(source, kind, param), block.title)


def _inline_document(source: Source, title: str | None, param: str) -> Shown:
    inline = _inline(source, ("application/pdf", "text/plain"), param)
    return File(inline, title) if inline.media_type == "application/pdf" else Text(_plain(inline, f"{param}.data"))


def _inline(source: Source, types: tuple[str, ...], param: str) -> Inline:
    media_type = one_of(_given(source.media_type, f"{param}.media_type"), types, f"{param}.media_type")
    return read_base64(_given(source.data, f"{param}.data"), media_type, f"{param}.data")


def _plain(inline: Inline, param: str) -> str:
    try:
        return inline.data.decode()
    except UnicodeDecodeError:
        raise invalid(param, "expected text in UTF-8") from None


def _search_result(block: ContentBlock, at: str) -> Iterator[Shown]:
    source = block.source if isinstance(block.source, str) else None
    content = _given(block.content, f"{at}.content")
    if isinstance(content, dict):
        raise invalid(f"{at}.content", "expected an array of text blocks")
    yield Text(f"{_given(block.title, f'{at}.title')}\n{_given(source, f'{at}.source')}")
    yield from _inner(content, ("text",), f"{at}.content")


def _source(block: ContentBlock, at: str) -> Source:
    if isinstance(block.source, str):
        raise invalid(f"{at}.source", "expected an object")
    return _given(block.source, f"{at}.source")


def _elsewhere(source: Source, kind: str, param: str) -> CoreSource:
    if kind == "file":
        return Stored(_given(source.file_id, f"{param}.file_id"))
    return read_url(_given(source.url, f"{param}.url"), f"{param}.url")


def _call(block: ContentBlock, at: str) -> ToolCall:
    """Arguments that were no JSON, and went out under a key that says so, are again what the model wrote."""
    id, name = _given(block.id, f"{at}.id"), _given(block.name, f"{at}.name")
    arguments = json_text(block.input, f"{at}.input")
    if arguments is None:
        raise missing(f"{at}.input")
    if INVALID in arguments:
        written = msgspec.json.decode(arguments, type=dict[str, Raw]).get(INVALID)
        if written is not None and bytes(written).startswith(b'"'):
            arguments = msgspec.json.decode(written, type=str)
    return ToolCall(id, name, arguments)


def _result(block: ContentBlock, at: str) -> Iterator[Shown]:
    content = block.content
    if isinstance(content, dict):
        raise invalid(f"{at}.content", "expected a string or an array of blocks")
    yield from _inner(content or "", (*SHOWN, "tool_reference"), f"{at}.content")


def _inner(content: str | list[ContentBlock], kinds: tuple[str, ...], at: str) -> Iterator[Shown]:
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for i, block in enumerate(content):
        if one_of(block.type, kinds, f"{at}[{i}].type") == "tool_reference":
            # All declared tools are in the prompt anyway.
            yield Text(_given(block.tool_name, f"{at}[{i}].tool_name"))
        else:
            yield from _shown(block, f"{at}[{i}]")


def _told(content: str | list[ContentBlock] | dict[str, Any] | None, at: str) -> Iterator[Shown]:
    """What another server's tool found, as far as it can be read."""
    if isinstance(content, dict):
        yield Text(msgspec.json.encode(_readable(content)).decode())
        return
    for i, block in enumerate(content if isinstance(content, list) else [ContentBlock("text", text=content or "")]):
        if block.type in SHOWN:
            yield from _shown(block, f"{at}[{i}]")
        elif told := "\n".join(word for word in (block.title, block.url, block.tool_name) if word):
            yield Text(told)


def _readable(value: object) -> object:
    if isinstance(value, dict):
        fields = cast(dict[str, object], value)
        return {key: _readable(item) for key, item in fields.items() if not key.startswith("encrypted")}
    return [_readable(item) for item in cast(list[object], value)] if isinstance(value, list) else value


def _given(value: T | None, param: str) -> T:
    if value is None:
        raise missing(param)
    return value
