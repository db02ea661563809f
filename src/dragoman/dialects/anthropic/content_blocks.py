"""Translates content blocks to the core's parts: text, media, documents, thinking, tool calls and their results.

Thinking that a client sends back is visible with a signature, or omitted and sealed in the signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw

from ...core.errors import RequestError
from ...core.images import check_image
from ...core.message import (
    File,
    Image,
    InlineMedia,
    Part,
    Reasoning,
    SealKind,
    Text,
    ToolCall,
    ToolResult,
    UploadedMedia,
)
from ...core.message import MediaSource as CoreSource
from ..base import Purpose, SealingKey, VerificationMode, unpack_reasoning
from ..body import check_one_of, invalid_value, missing_parameter, read_json_object
from ..media import read_base64, read_image_url, read_url
from ..tool_input import INVALID_JSON_KEY
from .wire import BlockSource, WireContentBlock


class ThinkingBlockReader:
    """Reads the thinking blocks of one request. Appends to `warnings` for those that are left out.

    keeps_seal: as in ReaderOptions.
    """

    def __init__(self, sealing_key: SealingKey | None, warnings: list[str], *, keeps_seal: bool = False) -> None:
        self._sealing_key, self._warnings, self._keeps_seal = sealing_key, warnings, keeps_seal

    def read(self, block: WireContentBlock, path: str) -> Iterator[Reasoning]:
        """Read a `thinking` or `redacted_thinking` block. Raises RequestError in strict mode if verification fails."""
        field, sealed = ("data", block.data) if block.type == "redacted_thinking" else ("signature", block.signature)
        unsealed = None
        if not block.thinking or self._keeps_seal:
            # An empty `thinking` with a signature is how omitted thinking comes back: the text is sealed in the
            # signature, and so is a vendor's seal where signatures must be this server's own.
            unsealed = self._unseal(sealed)
        # What was unsealed needs no signature: nobody else has the key, so it is this server's own text.
        if unsealed and (not block.thinking or unpack_reasoning(unsealed).text == block.thinking):
            yield unpack_reasoning(unsealed)
        elif not block.thinking and unsealed == "":
            return
        elif self._keeps_seal and sealed and self._is_foreign(block.thinking or "", sealed):
            yield Reasoning(block.thinking or "", seal=_name_seal(sealed, is_redacted=field == "data"))
        elif block.thinking and self._is_trusted(block.thinking, sealed or ""):
            yield Reasoning(block.thinking)
        elif self._verification is VerificationMode.STRICT:
            raise RequestError(f"{path}: Invalid `{field}` in `{block.type}` block", param=f"{path}.{field}")
        else:
            self._warnings.append(
                f"{path}: its {field} was not created by this server for this key; the thinking block is omitted"
            )

    @property
    def _verification(self) -> VerificationMode:
        return VerificationMode.OFF if self._sealing_key is None else self._sealing_key.check

    def _unseal(self, sealed: str | None) -> str | None:
        """Unseal omitted thinking; empty if nothing is sealed, None if it cannot be unsealed."""
        if not sealed:
            return ""
        return None if self._sealing_key is None else self._sealing_key.unseal(Purpose.REASONING, sealed)

    def _is_foreign(self, thinking: str, seal: str) -> bool:
        """Whether an engine has to verify this seal. In strict mode only this server's own are accepted."""
        if self._verification is VerificationMode.STRICT:
            return False
        return self._sealing_key is None or not self._sealing_key.verify_signature(thinking, seal)

    def _is_trusted(self, thinking: str, signature: str) -> bool:
        if (
            self._sealing_key is None
            or self._verification is VerificationMode.OFF
            # Thinking of another server has no signature of ours. Lenient accepts it as plain text, but never a forged
            # one.
            or (self._verification is VerificationMode.LENIENT and not signature)
        ):
            return True
        return self._sealing_key.verify_signature(thinking, signature)


def _name_seal(sealed: str, *, is_redacted: bool) -> str:
    """The seal with its kind. A signature has one already if it comes from another vendor than Anthropic."""
    if SealKind.OPENAI.read(sealed) is not None:
        return sealed
    return (SealKind.ANTHROPIC_REDACTED if is_redacted else SealKind.ANTHROPIC) + sealed


T = TypeVar("T")
VisiblePart = Text | Image | File
"""A part that a tool's result or a document may contain."""

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
VISIBLE_TYPES = ("text", "image", "document", "search_result")
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
THINKING_TYPES = ("thinking", "redacted_thinking")
IGNORED_TYPES = ("fallback", "mcp_tool_listing")
"""Blocks without content for a model."""
TOOL_CHANGES = ("tool_addition", "tool_removal")
"""Blocks that add or remove tools and are not part of the prompt; see `tools`."""
BILLING_HEADER = "x-anthropic-billing-header:"
"""Claude Code's first block of `system`. It differs in every request and would defeat the prefix cache."""

_BY_ROLE = {
    "user": (*VISIBLE_TYPES, "tool_result", "compaction"),
    "assistant": ("text", *THINKING_TYPES, "tool_use", *HOSTED_CALLS, *HOSTED_RESULTS, "compaction", *IGNORED_TYPES),
    "system": ("text", *TOOL_CHANGES),
}


def read_content(
    content: str | list[WireContentBlock] | None, role: str, path: str, thinking_reader: ThinkingBlockReader
) -> Iterator[Part]:
    """Parse a message's parts, in order. Raises RequestError with the path of the offending field.

    A hosted tool's result is among the assistant's own blocks.
    """
    if content is None:
        raise missing_parameter(path)
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for i, block in enumerate(content):
        check_one_of(block.type, _BY_ROLE[role], f"{path}[{i}].type")
        yield from _read_parts(block, f"{path}[{i}]", thinking_reader)


def read_system(system: str | list[WireContentBlock] | None, *, drop_nonces: bool) -> Iterator[Text]:
    """drop_nonces: omit the blocks that an agent changes with every request."""
    if isinstance(system, str):
        if system:
            yield Text(system)
        return
    for i, block in enumerate(system or ()):
        check_one_of(block.type, ("text",), f"system[{i}].type")
        text = _require(block.text, f"system[{i}].text")
        # Anthropic rejects empty text blocks. Here they are no error: they add nothing to a prompt.
        if text and not (drop_nonces and text.startswith(BILLING_HEADER)):
            yield Text(text)


def _read_parts(block: WireContentBlock, path: str, thinking_reader: ThinkingBlockReader) -> Iterator[Part]:
    kind = block.type
    if kind in VISIBLE_TYPES:
        yield from _read_visible(block, path)
    # The call of a hosted tool, replayed from Anthropic's own answers, looks to another model like any other call.
    elif kind in ("tool_use", *HOSTED_CALLS):
        yield _read_call(block, path)
    elif kind == "tool_result":
        result = tuple(_read_result(block, path))
        yield ToolResult(_require(block.tool_use_id, f"{path}.tool_use_id"), result, bool(block.is_error))
    elif kind in HOSTED_RESULTS:
        hosted_result = tuple(_read_hosted_result(block.content, f"{path}.content"))
        yield ToolResult(_require(block.tool_use_id, f"{path}.tool_use_id"), hosted_result, bool(block.is_error))
    elif kind in THINKING_TYPES:
        if kind == "thinking":
            _require(block.thinking, f"{path}.thinking")
        yield from thinking_reader.read(block, path)
    elif kind == "compaction" and isinstance(block.content, str):
        yield Text(block.content)


def _read_visible(block: WireContentBlock, path: str) -> Iterator[VisiblePart]:
    read: Callable[[WireContentBlock, str], Iterator[VisiblePart]]
    match block.type:
        case "text":
            read = _read_text
        case "image":
            read = _read_image
        case "document":
            read = _read_document
        case _:
            read = _read_search_result
    yield from read(block, path)


def _read_text(block: WireContentBlock, path: str) -> Iterator[VisiblePart]:
    if text := _require(block.text, f"{path}.text"):
        yield Text(text)


def _read_image(block: WireContentBlock, path: str) -> Iterator[VisiblePart]:
    source = _require_source(block, path)
    kind = check_one_of(source.type, ("base64", "url", "file"), f"{path}.source.type")
    if kind == "base64":
        media_type = check_one_of(
            _require(source.media_type, f"{path}.source.media_type"), IMAGE_TYPES, f"{path}.source.media_type"
        )
        param = f"{path}.source.data"
        yield Image(check_image(read_base64(_require(source.data, param), media_type, param), param))
    elif kind == "file":
        yield Image(UploadedMedia(_require(source.file_id, f"{path}.source.file_id")))
    else:
        yield Image(read_image_url(_require(source.url, f"{path}.source.url"), f"{path}.source.url"))


def _read_document(block: WireContentBlock, path: str) -> Iterator[VisiblePart]:
    """Read a document. Its title and context precede its text, since plain text has no metadata."""
    source, param = _require_source(block, path), f"{path}.source"
    kind = check_one_of(source.type, ("text", "base64", "content", "url", "file"), f"{param}.type")
    for text in (block.title, block.context):
        if text:
            yield Text(text)
    match kind:
        case "text":
            yield Text(_require(source.data, f"{param}.data"))
        case "base64":
            types = ("application/pdf", "text/plain")
            media_type = check_one_of(_require(source.media_type, f"{param}.media_type"), types, f"{param}.media_type")
            inline = read_base64(_require(source.data, f"{param}.data"), media_type, f"{param}.data")
            yield (
                File(inline, block.title)
                if inline.media_type == "application/pdf"
                else Text(_decode_text(inline, f"{param}.data"))
            )
        case "content":
            yield from _read_inner(_require(source.content, f"{param}.content"), ("text", "image"), f"{param}.content")
        case _:
            yield File(_read_reference(source, kind, param), block.title)


def _decode_text(inline: InlineMedia, param: str) -> str:
    try:
        return inline.data.decode()
    except UnicodeDecodeError:
        raise invalid_value(param, "expected text in UTF-8") from None


def _read_search_result(block: WireContentBlock, path: str) -> Iterator[VisiblePart]:
    source = block.source if isinstance(block.source, str) else None
    content = _require(block.content, f"{path}.content")
    if isinstance(content, dict):
        raise invalid_value(f"{path}.content", "expected an array of text blocks")
    yield Text(f"{_require(block.title, f'{path}.title')}\n{_require(source, f'{path}.source')}")
    yield from _read_inner(content, ("text",), f"{path}.content")


def _require_source(block: WireContentBlock, path: str) -> BlockSource:
    if isinstance(block.source, str):
        raise invalid_value(f"{path}.source", "expected an object")
    return _require(block.source, f"{path}.source")


def _read_reference(source: BlockSource, kind: str, param: str) -> CoreSource:
    if kind == "file":
        return UploadedMedia(_require(source.file_id, f"{param}.file_id"))
    return read_url(_require(source.url, f"{param}.url"), f"{param}.url")


def _read_call(block: WireContentBlock, path: str) -> ToolCall:
    """Read a call. Invalid arguments, which were sent out under INVALID_JSON_KEY, are restored unchanged."""
    id, name = _require(block.id, f"{path}.id"), _require(block.name, f"{path}.name")
    arguments = read_json_object(block.input, f"{path}.input")
    if arguments is None:
        raise missing_parameter(f"{path}.input")
    # `input` must be an object, so arguments that are not JSON went out wrapped. The model has to see what it wrote.
    if INVALID_JSON_KEY in arguments:
        raw_arguments = msgspec.json.decode(arguments, type=dict[str, Raw]).get(INVALID_JSON_KEY)
        if raw_arguments is not None and bytes(raw_arguments).startswith(b'"'):
            arguments = msgspec.json.decode(raw_arguments, type=str)
    return ToolCall(id, name, arguments)


def _read_result(block: WireContentBlock, path: str) -> Iterator[VisiblePart]:
    content = block.content
    if isinstance(content, dict):
        raise invalid_value(f"{path}.content", "expected a string or an array of blocks")
    yield from _read_inner(content or "", (*VISIBLE_TYPES, "tool_reference"), f"{path}.content")


def _read_inner(content: str | list[WireContentBlock], kinds: tuple[str, ...], path: str) -> Iterator[VisiblePart]:
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for i, block in enumerate(content):
        if check_one_of(block.type, kinds, f"{path}[{i}].type") == "tool_reference":
            # Tool references are skipped, because all declared tools are in the prompt anyway.
            yield Text(_require(block.tool_name, f"{path}[{i}].tool_name"))
        else:
            yield from _read_visible(block, f"{path}[{i}]")


def _read_hosted_result(
    content: str | list[WireContentBlock] | dict[str, Any] | None, path: str
) -> Iterator[VisiblePart]:
    """The result of a tool that another server ran, as far as it is readable."""
    if isinstance(content, dict):
        yield Text(msgspec.json.encode(_drop_encrypted(content)).decode())
        return
    # Search results of hosted tools are encrypted for Anthropic; their titles and addresses are readable.
    for i, block in enumerate(content if isinstance(content, list) else [WireContentBlock("text", text=content or "")]):
        if block.type in VISIBLE_TYPES:
            yield from _read_visible(block, f"{path}[{i}]")
        elif text := "\n".join(line for line in (block.title, block.url, block.tool_name) if line):
            yield Text(text)


def _drop_encrypted(value: object) -> object:
    if isinstance(value, dict):
        fields = cast(dict[str, object], value)
        # Only Anthropic can decrypt these fields; in a prompt they would be thousands of tokens of noise.
        return {key: _drop_encrypted(item) for key, item in fields.items() if not key.startswith("encrypted")}
    return [_drop_encrypted(item) for item in cast(list[object], value)] if isinstance(value, list) else value


def _require(value: T | None, param: str) -> T:
    if value is None:
        raise missing_parameter(param)
    return value
