"""Parses the content blocks of Messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from msgspec import Raw

from ...core.errors import RequestError
from ...core.image_header import check_image
from ...core.message import (
    File,
    Image,
    Part,
    Reasoning,
    SealKind,
    Text,
    ToolCall,
    ToolResult,
    UploadedMedia,
)
from ..field_errors import check_one_of, invalid_value, missing_parameter, require_value
from ..media import read_base64, read_image_url, read_url
from ..request_body import read_json_object
from ..sealing import Purpose, SealingKey, VerificationMode, unpack_reasoning
from ..server_tools import join_name
from ..tool_input import INVALID_JSON_KEY
from .wire import (
    BlockSource,
    WireContentBlock,
)


class ThinkingBlockReader:
    """Parses the thinking blocks of one request.

    warnings: receives a warning for each block that is omitted.
    keeps_seal: as in ReaderOptions.
    """

    def __init__(
        self, sealing_key: SealingKey | None, warnings: list[str], *, keeps_seal: bool = False
    ) -> None:
        self._sealing_key = sealing_key
        self._warnings = warnings
        self._keeps_seal = keeps_seal

    def read(self, block: WireContentBlock, path: str) -> Iterator[Reasoning]:
        """Read a `thinking` or `redacted_thinking` block. Raises RequestError in strict
        mode if verification fails.
        """
        field, seal = (
            ("data", block.data)
            if block.type == "redacted_thinking"
            else ("signature", block.signature)
        )
        thinking = block.thinking or ""
        seal = seal or ""
        key = self._sealing_key
        verification = VerificationMode.OFF if key is None else key.check
        is_signed = key is not None and seal != "" and key.verify_signature(thinking, seal)
        unsealed = None
        if not thinking or self._keeps_seal:
            # Omitted thinking comes back as an empty `thinking` with a signature, in
            # which the text is sealed. So is a vendor's seal, if signatures must be
            # this server's own.
            unsealed = (
                "" if not seal else None if key is None else key.unseal(Purpose.REASONING, seal)
            )
        # An unsealed text needs no signature: only this server has the key.
        if unsealed and (not thinking or unpack_reasoning(unsealed).text == thinking):
            yield unpack_reasoning(unsealed)
        elif not thinking and unsealed == "":
            return
        # Another vendor's seal, which the engine verifies. Strict mode accepts only
        # this server's own.
        elif (
            self._keeps_seal
            and seal
            and verification is not VerificationMode.STRICT
            and not is_signed
        ):
            # A signature from another vendor than Anthropic already begins with its
            # kind.
            kind = SealKind.ANTHROPIC_REDACTED if field == "data" else SealKind.ANTHROPIC
            has_kind = any(kind.read(seal) is not None for kind in SealKind)
            yield Reasoning(thinking, seal=seal if has_kind else kind + seal)
        # Thinking from another server lacks our signature. Lenient mode accepts it if
        # it has none, but no invalid one.
        elif thinking and (
            verification is VerificationMode.OFF
            or (verification is VerificationMode.LENIENT and not seal)
            or is_signed
        ):
            yield Reasoning(thinking)
        elif verification is VerificationMode.STRICT:
            raise RequestError(
                f"{path}: Invalid `{field}` in `{block.type}` block", param=f"{path}.{field}"
            )
        else:
            self._warnings.append(
                f"{path}: its {field} was not created by this server for this key; the thinking "
                f"block is omitted"
            )

    def find_search_output(self, block: WireContentBlock) -> str | None:
        """Return the output of a search that this server made; None for any other block."""
        key = self._sealing_key
        if key is None or not isinstance(block.content, list):
            return None
        outputs = (
            key.unseal(Purpose.SEARCH, result.encrypted_content)
            for result in block.content
            if result.encrypted_content
        )
        return next((output for output in outputs if output is not None), None)


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
"""Blocks that are accepted but not part of the prompt."""
TOOL_CHANGES = ("tool_addition", "tool_removal")
"""Blocks that add or remove tools and are not part of the prompt; see
`AnthropicToolRegistry.apply_changes`.
"""
BILLING_HEADER = "x-anthropic-billing-header:"
"""Claude Code's first block of `system`. It differs in every request and would defeat
the prefix cache.
"""

# The types of content blocks that messages of each role may contain.
_BY_ROLE = {
    "user": (*VISIBLE_TYPES, "tool_result", "compaction"),
    "assistant": (
        "text",
        *THINKING_TYPES,
        "tool_use",
        *HOSTED_CALLS,
        *HOSTED_RESULTS,
        "compaction",
        *IGNORED_TYPES,
    ),
    "system": ("text", *TOOL_CHANGES),
}


def read_content(
    content: str | list[WireContentBlock] | None,
    role: str,
    path: str,
    thinking_reader: ThinkingBlockReader,
) -> tuple[Part, ...]:
    """Parse a message's parts, in order. Raises RequestError with the path of the
    invalid field.

    An assistant message may contain a hosted tool's result.
    """
    if content is None:
        raise missing_parameter(path)
    if isinstance(content, str):
        return (Text(content),) if content else ()
    parts: list[Part] = []
    for i, block in enumerate(content):
        check_one_of(block.type, _BY_ROLE[role], f"{path}[{i}].type")
        parts += _read_parts(block, f"{path}[{i}]", thinking_reader)
    return tuple(parts)


def read_system(
    system: str | list[WireContentBlock] | None, *, drop_nonces: bool
) -> tuple[Text, ...]:
    """Parse the system prompt. Raises RequestError.

    drop_nonces: omit the blocks that an agent changes with every request.
    """
    if not system:
        return ()
    if isinstance(system, str):
        return (Text(system),)
    parts: list[Text] = []
    for i, block in enumerate(system):
        check_one_of(block.type, ("text",), f"system[{i}].type")
        text = require_value(block.text, f"system[{i}].text")
        # Anthropic rejects empty text blocks. Here they are ignored, since they add
        # nothing to a prompt.
        if text and not (drop_nonces and text.startswith(BILLING_HEADER)):
            parts.append(Text(text))
    return tuple(parts)


def _read_parts(
    block: WireContentBlock, path: str, thinking_reader: ThinkingBlockReader
) -> Iterator[Part]:
    kind = block.type
    if kind in VISIBLE_TYPES:
        yield from _read_visible(block, path)
    # A hosted tool's call, replayed from an answer of Anthropic, becomes an ordinary
    # call for another model.
    elif kind in ("tool_use", *HOSTED_CALLS):
        yield _read_call(block, path)
    elif kind == "tool_result":
        if isinstance(block.content, dict):
            raise invalid_value(f"{path}.content", "expected a string or an array of blocks")
        result = tuple(
            _read_inner(block.content or "", (*VISIBLE_TYPES, "tool_reference"), f"{path}.content")
        )
        yield ToolResult(
            require_value(block.tool_use_id, f"{path}.tool_use_id"), result, bool(block.is_error)
        )
    elif kind in HOSTED_RESULTS:
        output = thinking_reader.find_search_output(block)
        hosted_result = (
            tuple(_read_hosted_result(block.content, f"{path}.content"))
            if output is None
            else (Text(output),)
        )
        yield ToolResult(
            require_value(block.tool_use_id, f"{path}.tool_use_id"),
            hosted_result,
            bool(block.is_error),
        )
    elif kind in THINKING_TYPES:
        if kind == "thinking":
            require_value(block.thinking, f"{path}.thinking")
        yield from thinking_reader.read(block, path)
    elif kind == "compaction" and isinstance(block.content, str):
        yield Text(block.content)


def _read_visible(block: WireContentBlock, path: str) -> Iterator[VisiblePart]:
    match block.type:
        case "text":
            if text := require_value(block.text, f"{path}.text"):
                yield Text(text)
        case "image":
            yield _read_image(block, path)
        case "document":
            yield from _read_document(block, path)
        case _:
            source = block.source if isinstance(block.source, str) else None
            content = require_value(block.content, f"{path}.content")
            if isinstance(content, dict):
                raise invalid_value(f"{path}.content", "expected an array of text blocks")
            title = require_value(block.title, f"{path}.title")
            yield Text(f"{title}\n{require_value(source, f'{path}.source')}")
            yield from _read_inner(content, ("text",), f"{path}.content")


def _read_image(block: WireContentBlock, path: str) -> Image:
    source = _require_source(block, path)
    kind = check_one_of(source.type, ("base64", "url", "file"), f"{path}.source.type")
    if kind == "base64":
        media_type = check_one_of(
            require_value(source.media_type, f"{path}.source.media_type"),
            IMAGE_TYPES,
            f"{path}.source.media_type",
        )
        param = f"{path}.source.data"
        return Image(
            check_image(read_base64(require_value(source.data, param), media_type, param), param)
        )
    if kind == "file":
        return Image(UploadedMedia(require_value(source.file_id, f"{path}.source.file_id")))
    return Image(
        read_image_url(require_value(source.url, f"{path}.source.url"), f"{path}.source.url")
    )


def _read_document(block: WireContentBlock, path: str) -> Iterator[VisiblePart]:
    """Parse a document. Its title and context precede its text, since plain text has no
    metadata.
    """
    source = _require_source(block, path)
    param = f"{path}.source"
    kind = check_one_of(source.type, ("text", "base64", "content", "url", "file"), f"{param}.type")
    for text in (block.title, block.context):
        if text:
            yield Text(text)
    match kind:
        case "text":
            yield Text(require_value(source.data, f"{param}.data"))
        case "base64":
            types = ("application/pdf", "text/plain")
            media_type = check_one_of(
                require_value(source.media_type, f"{param}.media_type"),
                types,
                f"{param}.media_type",
            )
            inline = read_base64(
                require_value(source.data, f"{param}.data"), media_type, f"{param}.data"
            )
            if inline.media_type == "application/pdf":
                yield File(inline, block.title)
                return
            try:
                yield Text(inline.data.decode())
            except UnicodeDecodeError:
                raise invalid_value(f"{param}.data", "expected text in UTF-8") from None
        case "content":
            yield from _read_inner(
                require_value(source.content, f"{param}.content"),
                ("text", "image"),
                f"{param}.content",
            )
        case "file":
            yield File(
                UploadedMedia(require_value(source.file_id, f"{param}.file_id")), block.title
            )
        case _:
            yield File(
                read_url(require_value(source.url, f"{param}.url"), f"{param}.url"), block.title
            )


def _require_source(block: WireContentBlock, path: str) -> BlockSource:
    if isinstance(block.source, str):
        raise invalid_value(f"{path}.source", "expected an object")
    return require_value(block.source, f"{path}.source")


def _read_call(block: WireContentBlock, path: str) -> ToolCall:
    """Parse a call. Invalid arguments, which were sent to the client under
    INVALID_JSON_KEY, are restored unchanged.
    """
    id = require_value(block.id, f"{path}.id")
    name = require_value(block.name, f"{path}.name")
    arguments = read_json_object(block.input, f"{path}.input")
    if arguments is None:
        raise missing_parameter(f"{path}.input")
    # `input` must be an object, so arguments that are not JSON were wrapped in one. The
    # model must see its own text.
    if INVALID_JSON_KEY in arguments:
        raw_arguments = msgspec.json.decode(arguments, type=dict[str, Raw]).get(INVALID_JSON_KEY)
        if raw_arguments is not None and bytes(raw_arguments).startswith(b'"'):
            arguments = msgspec.json.decode(raw_arguments, type=str)
    if block.type == "mcp_tool_use" and block.server_name:
        name = join_name(block.server_name, name)
    return ToolCall(id, name, arguments)


def _read_inner(
    content: str | list[WireContentBlock], kinds: tuple[str, ...], path: str
) -> Iterator[VisiblePart]:
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for i, block in enumerate(content):
        if check_one_of(block.type, kinds, f"{path}[{i}].type") == "tool_reference":
            # All declared tools are in the prompt anyway, so the name is enough.
            yield Text(require_value(block.tool_name, f"{path}[{i}].tool_name"))
        else:
            yield from _read_visible(block, f"{path}[{i}]")


def _read_hosted_result(
    content: str | list[WireContentBlock] | dict[str, Any] | None, path: str
) -> Iterator[VisiblePart]:
    """Parse the readable part of the result of a tool that another server ran."""
    if isinstance(content, dict):
        yield Text(msgspec.json.encode(_drop_encrypted(content)).decode())
        return
    # Search results of hosted tools are encrypted for Anthropic; their titles and
    # addresses are readable.
    for i, block in enumerate(
        content if isinstance(content, list) else [WireContentBlock("text", text=content or "")]
    ):
        if block.type in VISIBLE_TYPES:
            yield from _read_visible(block, f"{path}[{i}]")
        elif text := "\n".join(line for line in (block.title, block.url, block.tool_name) if line):
            yield Text(text)


def _drop_encrypted(value: object) -> object:
    if isinstance(value, dict):
        fields = cast(dict[str, object], value)
        # Only Anthropic can decrypt these fields; in a prompt they would be thousands
        # of tokens of noise.
        return {
            key: _drop_encrypted(item)
            for key, item in fields.items()
            if not key.startswith("encrypted")
        }
    return (
        [_drop_encrypted(item) for item in cast(list[object], value)]
        if isinstance(value, list)
        else value
    )
