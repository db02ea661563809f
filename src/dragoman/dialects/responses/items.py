"""Translates input items to the core's messages: the items that one answer produced become one turn again.

A compaction item becomes the summary that replaces everything that the assistant and its tools wrote before. User and
system messages remain. The prompt that requests a summary is here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw

from ...core.errors import RequestError
from ...core.message import (
    Audio,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    SealKind,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
    UploadedMedia,
)
from ...core.request import Conversation, GenerateRequest
from ..base import Purpose, SealingKey, VerificationMode, unpack_reasoning
from ..body import (
    check_one_of,
    invalid_value,
    missing_parameter,
    read_base64,
    read_image_url,
    read_json_object,
    read_url,
)
from .client_tools import CALL_TYPES, CLIENT_TOOLS, OUTPUT_TYPES, find_kinds, read_screen, render_shell_output
from .tools import ResponsesToolRegistry
from .wire import ResponsesContentPart, ResponsesInputAudio, ResponsesWireTool, WireContent, WireItem

SUMMARY_REQUEST = Message(
    Role.USER,
    (
        Text(
            "Summarize the conversation so far so that you can continue it without access to the original messages. "
            "Include the user's requests, the work done and its results, the names, file paths, numbers and decisions "
            "that still matter, and the remaining tasks. Reply with the summary only."
        ),
    ),
)
SUMMARY_PREFIX = "Summary of the conversation so far:\n\n"
"""The text before a summary in a prompt."""
MAX_SUMMARY_TOKENS = 4096
"""Maximum tokens of a summary, unless the request sets one: a model that does not stop would fill the whole context."""


def build_summary_request(request: GenerateRequest) -> GenerateRequest:
    """Build the request for a summary: unconstrained text about as many turns as fit the context."""
    prompt = request.prompt
    assert isinstance(prompt, Conversation)
    limits = request.limits
    return msgspec.structs.replace(
        request,
        # Compaction is asked for when a conversation has become too long, so it must not fail by that.
        prompt=msgspec.structs.replace(prompt, tool_choice=ToolChoice("none"), drop_oldest=True),
        limits=msgspec.structs.replace(limits, max_tokens=limits.max_tokens or MAX_SUMMARY_TOKENS),
        constraint=None,
        logprobs=None,
    )


def apply_summary(summary: str, messages: Sequence[Message]) -> list[Message]:
    """Replace the messages before a compaction. The summary is an assistant message, so that turns alternate."""
    remaining = [message for message in messages if message.role not in (Role.ASSISTANT, Role.TOOL)]
    return [*remaining, Message(Role.ASSISTANT, (Text(SUMMARY_PREFIX + summary),))] if summary else remaining


T = TypeVar("T")

COMPACTION_TRIGGER = "compaction_trigger"
ADDITIONAL_TOOLS, CONFIGURATION_UPDATE = "additional_tools", "configuration_update"
READ_TYPES = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "compaction",
    COMPACTION_TRIGGER,
    ADDITIONAL_TOOLS,
    CONFIGURATION_UPDATE,
    *sorted(CALL_TYPES),
    *sorted(OUTPUT_TYPES),
)
REFERENCE_TYPES = ("item_reference",)
"""Items that refer to others, which only a server with a store can resolve."""
HOSTED_TYPES = (
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "web_search_call",
)
RAW_TYPES = frozenset(HOSTED_TYPES) | CALL_TYPES | OUTPUT_TYPES | {ADDITIONAL_TOOLS, CONFIGURATION_UPDATE}
"""Items that are stored as they were sent."""
ROLES = ("user", "assistant", "system", "developer")
TEXT_PART_TYPES = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
PART_TYPES = (*TEXT_PART_TYPES, "refusal", "input_image", "input_file", "input_audio")
AUDIO_FORMATS = ("wav", "mp3", "flac", "opus", "ogg", "m4a", "aac", "webm", "pcm16")


def find_item_type(item: WireItem, path: str) -> str:
    """The type of an item; one without a type is a message, or a reference if it has no role."""
    if item.type is not None:
        return check_one_of(item.type, (*READ_TYPES, *REFERENCE_TYPES, *HOSTED_TYPES), f"{path}.type")
    if item.role is not None:
        return "message"
    if item.id is None:
        raise missing_parameter(f"{path}.type")
    return "item_reference"


def read_items(
    items: Sequence[WireItem],
    tools: ResponsesToolRegistry,
    sealing_key: SealingKey | None,
    warnings: list[str],
    path: str = "input",
    *,
    keeps_seal: bool = False,
) -> tuple[Message, ...]:
    """Parse items to messages. References are skipped.

    tools: the declared tools; those that items load are added.
    path: field that contains the items. keeps_seal: as in ReaderOptions.

    Raises:
        RequestError: names the offending field.
    """
    turns = _TurnBuilder(tools, sealing_key, warnings, keeps_seal)
    for i, item in enumerate(items):
        turns.add(item, f"{path}[{i}]")
    return turns.finish()


class _TurnBuilder:
    """Groups items to turns.

    Consecutive text messages of the assistant are separate turns.
    """

    def __init__(
        self,
        tools: ResponsesToolRegistry,
        sealing_key: SealingKey | None,
        warnings: list[str],
        keeps_seal: bool,
    ) -> None:
        self._tools, self._sealing_key, self._warnings = tools, sealing_key, warnings
        self._keeps_seal = keeps_seal
        self._messages: list[Message] = []
        self._open_parts: list[Part] = []
        self._names: dict[str, str] = {}

    def finish(self) -> tuple[Message, ...]:
        self._close_turn()
        return tuple(self._messages)

    def add(self, item: WireItem, path: str) -> None:
        match find_item_type(item, path):
            case "message":
                self._add_message(item, path)
            case "reasoning":
                self._add_reasoning(item, path)
            case "function_call":
                self._add_call(item, read_arguments(item.arguments, f"{path}.arguments"), path, custom=False)
            case "custom_tool_call":
                self._add_call(item, read_arguments(item.input, f"{path}.input"), path, custom=True)
            case "function_call_output" | "custom_tool_call_output":
                self._add_result(item, path)
            case "compaction":
                self._add_compaction(item, path)
            case kind if kind in CALL_TYPES:
                self._add_client_call(item, kind, path)
            case kind if kind in OUTPUT_TYPES:
                self._add_client_result(item, kind, path)
            case "additional_tools":
                self._tools.load(read_tools(item, path), f"{path}.tools")
            case kind if kind in HOSTED_TYPES:
                self._warnings.append(f"{path}: items of type '{kind}' cannot be replayed here; it was left out")
            case "item_reference" if not item.id:
                raise missing_parameter(f"{path}.id")
            case _:
                """References are resolved by the server's store; triggers and updates are handled by the reader."""

    def _close_turn(self) -> None:
        if self._open_parts:
            self._messages.append(Message(Role.ASSISTANT, tuple(self._open_parts)))
            self._open_parts = []

    def _add_message(self, item: WireItem, path: str) -> None:
        if item.role is None:
            raise missing_parameter(f"{path}.role")
        role = check_one_of(item.role, ROLES, f"{path}.role")
        parts = tuple(_read_content(item.content, f"{path}.content"))
        if role != "assistant":
            if item.content is None:
                raise missing_parameter(f"{path}.content")
            self._close_turn()
            self._messages.append(Message(Role(role), tuple(map(_refusal_to_text, parts))))
            return
        # Reasoning, then text, then calls is one answer of a model; a second text can only be that of the next answer.
        if parts and self._open_parts and isinstance(self._open_parts[-1], Text | Refusal):
            self._close_turn()
        self._open_parts += parts

    def _add_reasoning(self, item: WireItem, path: str) -> None:
        """Add the decrypted reasoning if possible, else the content, else the summary."""
        # Sealed reasoning is complete, whereas the visible text may be a summary of it.
        unsealed, seal = self._unseal(item, path), ""
        if unsealed is None:
            visible = "\n\n".join(read_texts(item.content) or read_texts(item.summary))
            if self._keeps_seal and item.encrypted_content:
                seal = item.encrypted_content
                # The writer sends an OpenAI seal without its kind, as OpenAI does, so a seal without a kind is
                # OpenAI's.
                seal = seal if any(kind.read(seal) is not None for kind in SealKind) else SealKind.OPENAI + seal
            reasoning = Reasoning(visible, seal=seal)
        else:
            reasoning = unpack_reasoning(unsealed)
        if reasoning.text or reasoning.seal:
            self._open_parts.append(reasoning)

    def _unseal(self, item: WireItem, path: str) -> str | None:
        sealed, key = item.encrypted_content, self._sealing_key
        reasoning = None if sealed is None or key is None else key.unseal(Purpose.REASONING, sealed)
        if sealed is None or reasoning is not None:
            return reasoning
        if key is not None and key.check is VerificationMode.STRICT:
            raise _foreign_content_error(path)
        if self._keeps_seal:
            return None
        replacement = (
            "left out"
            if not (read_texts(item.content) or read_texts(item.summary))
            else "replaced by its visible content"
        )
        self._warnings.append(f"{path}: its encrypted reasoning cannot be read here; it was {replacement}")
        return None

    def _add_compaction(self, item: WireItem, path: str) -> None:
        sealed, key = _require(item.encrypted_content, f"{path}.encrypted_content"), self._sealing_key
        summary = None if key is None else key.unseal(Purpose.COMPACTION, sealed)
        # A summary replaces all that the assistant wrote before, so it cannot be left out with a warning as reasoning
        # can.
        if summary is None:
            raise _foreign_content_error(path)
        self._close_turn()
        self._messages = apply_summary(summary, self._messages)

    def _add_call(self, item: WireItem, arguments: str, path: str, *, custom: bool) -> None:
        call_id = item.call_id or item.id
        if not call_id:
            raise missing_parameter(f"{path}.call_id")
        if not item.name:
            raise missing_parameter(f"{path}.name")
        name = self._tools.qualify(item.name, item.namespace)
        self._names[call_id] = name
        self._open_parts.append(ToolCall(call_id, name, arguments, custom=custom))

    def _add_client_call(self, item: WireItem, kind: str, path: str) -> None:
        call_id = item.call_id or item.id
        if not call_id:
            raise missing_parameter(f"{path}.call_id")
        # OpenAI's own search has no call that a client could answer, so the tools it found are all that is left of it.
        if kind == "tool_search_call" and not item.call_id:
            self._warnings.append(f"{path}: a search that a server made cannot be replayed here; it was left out")
            return
        name = self._tools.qualify_client_tool(kind)
        tool = CLIENT_TOOLS[find_kinds(kind)[0]]
        self._names[call_id] = name
        self._open_parts.append(ToolCall(call_id, name, tool.read_call(item, path).decode()))

    def _add_client_result(self, item: WireItem, kind: str, path: str) -> None:
        """Add the output of a tool that the client ran. The types of a local shell's output have no `call_id`."""
        if kind == "tool_search_output":
            # Before the check of the id: tools that OpenAI's own search found, which has no call to answer, can be
            # called too.
            loaded = self._tools.load(read_tools(item, path), f"{path}.tools")
            content: tuple[Text | Image | Audio | File, ...] = (Text("Loaded tools: " + (", ".join(loaded) or "none")),)
            if not item.call_id:
                return
        else:
            content = self._read_client_output(item, kind, f"{path}.output")
        call_id = item.call_id or item.id
        if not call_id:
            raise missing_parameter(f"{path}.call_id")
        self._close_turn()
        result = ToolResult(call_id, content, is_error=item.status == "failed")
        self._messages.append(Message(Role.TOOL, (result,), self._names.get(call_id)))

    def _read_client_output(self, item: WireItem, kind: str, path: str) -> tuple[Text | Image | Audio | File, ...]:
        output = item.output
        # Its output is optional, but a template shows an empty result as nothing, and the model would apply it again.
        if kind == "apply_patch_call_output" and not output:
            return (Text("The patch failed." if item.status == "failed" else "The patch was applied."),)
        if output is None:
            raise missing_parameter(path)
        if kind == "shell_call_output" and isinstance(output, list):
            return (Text(render_shell_output(output)),)
        if kind == "computer_call_output" and isinstance(output, dict):
            return (_read_image(read_screen(output), path),)
        return tuple(_to_result_part(part) for part in _read_content(output, path))

    def _add_result(self, item: WireItem, path: str) -> None:
        if not item.call_id and not item.name:
            raise missing_parameter(f"{path}.call_id")
        if item.output is None:
            raise missing_parameter(f"{path}.output")
        content = tuple(_to_result_part(part) for part in _read_content(item.output, f"{path}.output"))
        self._close_turn()
        if not item.call_id:
            # An output that no call precedes, such as the goals of Codex 0.169 (openai-python 3.54: `call_id` is
            # optional beside `name`). Chat templates know no such turn, so the model reads it as a user's.
            name = self._tools.qualify(item.name or "", item.namespace)
            self._messages.append(Message(Role.USER, (Text(f"Output of {name}:\n"), *content)))
            return
        result = ToolResult(item.call_id, content)
        self._messages.append(Message(Role.TOOL, (result,), self._names.get(item.call_id)))


def read_raw_items(items: Sequence[WireItem], fields: Mapping[str, Raw], name: str) -> list[dict[str, Raw]]:
    """The original fields of the items that are stored as they were sent; none of others.

    name: the body's field that contains the items.
    """
    # The input is decoded a second time only for the items whose structs do not cover all of their fields.
    if any(item.type in RAW_TYPES for item in items):
        return msgspec.json.decode(fields[name], type=list[dict[str, Raw]])
    return [{}] * len(items)


def _foreign_content_error(path: str) -> RequestError:
    return invalid_value(f"{path}.encrypted_content", "it is damaged, or was not created by this server for this key")


def _refusal_to_text(part: Part) -> Part:
    """A refusal in another role than the assistant's is plain text."""
    return Text(part.text) if isinstance(part, Refusal) else part


def _to_result_part(part: Part) -> Text | Image | Audio | File:
    """A refusal in a tool's output, which the model sees as the tool's text."""
    if isinstance(part, Text | Image | Audio | File):
        return part
    return Text(part.text if isinstance(part, Refusal) else "")


def _read_content(content: WireContent | None, path: str) -> Iterator[Part]:
    if isinstance(content, dict):
        raise invalid_value(path, "expected a string or an array of parts")
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for i, part in enumerate(content or ()):
        yield Text(part) if isinstance(part, str) else _read_part(part, f"{path}[{i}]")


def _read_part(part: ResponsesContentPart, path: str) -> Part:
    kind = check_one_of(_require(part.type, f"{path}.type"), PART_TYPES, f"{path}.type")
    if kind in TEXT_PART_TYPES:
        return Text(_require(part.text, f"{path}.text"))
    match kind:
        case "refusal":
            return Refusal(_require(part.refusal, f"{path}.refusal"))
        case "input_image":
            return _read_image(part, path)
        case "input_file":
            return _read_file(part, path)
        case _:
            return _read_audio(_require(part.input_audio, f"{path}.input_audio"), f"{path}.input_audio")


def read_tools(item: WireItem, path: str) -> list[ResponsesWireTool]:
    """The tools of an item."""
    if not bytes(item.tools):
        raise missing_parameter(f"{path}.tools")
    try:
        return msgspec.json.decode(item.tools, type=list[ResponsesWireTool])
    except msgspec.MsgspecError as error:
        raise invalid_value(f"{path}.tools", str(error)) from None


def read_texts(content: WireContent | None) -> list[str]:
    """The texts of a reasoning item's content or summary; other parts are ignored."""
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        return []
    texts = (part if isinstance(part, str) else part.text for part in content)
    return [text for text in texts if text]


def read_arguments(raw: Raw, param: str) -> str:
    """A call's arguments as text. Invalid JSON is replayed unchanged; some local clients send an object."""
    text = bytes(raw).strip()
    if text in (b"", b"null"):
        return ""
    try:
        return msgspec.json.decode(text, type=str) if text.startswith(b'"') else read_json_object(raw, param) or ""
    except (RequestError, msgspec.MsgspecError, UnicodeDecodeError):
        raise invalid_value(param, "expected a string") from None


def _require(value: T | None, param: str) -> T:
    if value is None:
        raise missing_parameter(param)
    return value


def _read_image(part: ResponsesContentPart, path: str) -> Image:
    """Read an image; Chat's form, an object with a url, is accepted too."""
    url, detail = part.image_url, part.detail
    if url is not None and not isinstance(url, str):
        url, detail = url.url, url.detail or detail
    detail = check_one_of(detail or "auto", ("auto", "low", "high", "original"), f"{path}.detail")
    if url is not None:
        return Image(read_image_url(url, f"{path}.image_url"), detail)
    return Image(UploadedMedia(_require(part.file_id, f"{path}.image_url")), detail)


def _read_file(part: ResponsesContentPart, path: str) -> File:
    if part.file_id:
        return File(UploadedMedia(part.file_id), part.filename)
    if part.file_url is not None:
        return File(read_url(part.file_url, f"{path}.file_url"), part.filename)
    data = _require(part.file_data, f"{path}.file_data")
    return File(read_base64(data, None, f"{path}.file_data"), part.filename)


def _read_audio(audio: ResponsesInputAudio, path: str) -> Audio:
    format = check_one_of(audio.format, AUDIO_FORMATS, f"{path}.format")
    return Audio(read_base64(audio.data, f"audio/{format}", f"{path}.data"), format)
