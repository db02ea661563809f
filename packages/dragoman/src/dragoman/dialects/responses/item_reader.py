"""Parses input items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Raw

from ...core.errors import RequestError
from ...core.message import (
    Audio,
    File,
    Image,
    MediaSource,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    SealKind,
    Text,
    ToolChoice,
    ToolResult,
    UploadedMedia,
)
from ...core.request import Conversation, GenerateRequest
from ..field_errors import abbreviate, check_one_of, invalid_value, missing_parameter, require_value
from ..media import read_base64, read_image_url, read_url
from ..request_body import BodySchema, ParsedBody, prefix_param, read_json_object
from ..sealing import Purpose, SealingKey, VerificationMode, unpack_reasoning
from .client_tools import (
    CALL_TYPES,
    CLIENT_TOOLS,
    OUTPUT_TYPES,
    find_kinds,
    read_screen,
    render_shell_output,
)
from .hosted_tools import read_hosted_item
from .parsed_items import (
    AssistantParts,
    ConfigurationUpdate,
    FreeOutput,
    ItemCall,
    ItemSummary,
    LoadedTools,
    ParsedItem,
    ResultPart,
)
from .wire import (
    ResponsesContentPart,
    ResponsesWireTool,
    WireContent,
    WireItem,
)

SUMMARY_REQUEST = Message(
    Role.USER,
    (
        Text(
            "Summarize the conversation so far so that you can continue it without access to the "
            "original messages. "
            "Include the user's requests, the work done and its results, the names, file paths, "
            "numbers and decisions "
            "that still matter, and the remaining tasks. Reply with the summary only."
        ),
    ),
)
SUMMARY_PREFIX = "Summary of the conversation so far:\n\n"
"""The text before a summary in a prompt."""
MAX_SUMMARY_TOKENS = 4096
"""Maximum tokens of a summary, unless the request sets one: a model that does not stop
would fill the whole context.
"""


def build_summary_request(request: GenerateRequest) -> GenerateRequest:
    """Build the request for a summary: unconstrained text about as many turns as fit
    the context.
    """
    prompt = request.prompt
    assert isinstance(prompt, Conversation)
    limits = request.limits
    return msgspec.structs.replace(
        request,
        # Compaction is requested when a conversation has become too long, so it must
        # not fail for that reason.
        prompt=msgspec.structs.replace(prompt, tool_choice=ToolChoice("none"), drop_oldest=True),
        limits=msgspec.structs.replace(limits, max_tokens=limits.max_tokens or MAX_SUMMARY_TOKENS),
        constraint=None,
        logprobs=None,
    )


def apply_summary(summary: str, messages: Sequence[Message]) -> list[Message]:
    """Replace the messages before a compaction. The summary is an assistant message, so
    that turns alternate.
    """
    remaining = [message for message in messages if message.role not in (Role.ASSISTANT, Role.TOOL)]
    return (
        [*remaining, Message(Role.ASSISTANT, (Text(SUMMARY_PREFIX + summary),))]
        if summary
        else remaining
    )


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
COMPACTION_TRIGGER = "compaction_trigger"
ADDITIONAL_TOOLS = "additional_tools"
CONFIGURATION_UPDATE = "configuration_update"
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
RAW_TYPES = (
    frozenset(HOSTED_TYPES) | CALL_TYPES | OUTPUT_TYPES | {ADDITIONAL_TOOLS, CONFIGURATION_UPDATE}
)
"""Items that are stored as they were sent."""
ITEM_STATUSES = ("in_progress", "completed", "incomplete")
_HOSTED_STATUSES = (*ITEM_STATUSES, "failed")
_STATUSES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((*HOSTED_TYPES, *sorted(OUTPUT_TYPES)), _HOSTED_STATUSES),
    **dict.fromkeys(("web_search_call", "file_search_call"), (*_HOSTED_STATUSES, "searching")),
    "code_interpreter_call": (*_HOSTED_STATUSES, "interpreting"),
    "image_generation_call": (*_HOSTED_STATUSES, "generating"),
    "mcp_call": (*_HOSTED_STATUSES, "calling"),
}
"""The statuses of items that have others than ITEM_STATUSES."""
ROLES = ("user", "assistant", "system", "developer")
TEXT_PART_TYPES = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
PART_TYPES = (*TEXT_PART_TYPES, "refusal", "input_image", "input_file", "input_audio")
AUDIO_FORMATS = ("wav", "mp3", "flac", "opus", "ogg", "m4a", "aac", "webm", "pcm16")


def find_item_type(item: WireItem, path: str) -> str:
    """Return the type of an item; one without a type is a message, or a reference if it
    has no role.
    """
    if item.type is not None:
        return check_one_of(
            item.type, (*READ_TYPES, *REFERENCE_TYPES, *HOSTED_TYPES), f"{path}.type"
        )
    if item.role is not None:
        return "message"
    if item.id is None:
        raise missing_parameter(f"{path}.type")
    return "item_reference"


_UPDATE = BodySchema(ConfigurationUpdate)


def read_update(item: WireItem, path: str) -> ConfigurationUpdate:
    """Parse a `configuration_update` item."""
    fields = {"reasoning": item.reasoning, "text": item.text}
    present = {
        name: raw for name, raw in fields.items() if bytes(raw).strip() not in (b"", b"null")
    }
    if not present:
        raise missing_parameter(f"{path}.reasoning", " An update has 'reasoning', 'text' or both.")
    with prefix_param(path):
        update = ParsedBody(msgspec.json.encode(present)).decode(_UPDATE)
        if update.reasoning is not None:
            check_one_of(update.reasoning.effort or "none", EFFORTS, "reasoning.effort")
        return update


class ItemReader:
    """Parses items one by one.

    sealing_key: decrypts reasoning and summaries; None if there is none.
    warnings: receives warnings.
    keeps_seal: as in ReaderOptions.
    """

    def __init__(
        self, sealing_key: SealingKey | None, warnings: list[str], *, keeps_seal: bool = False
    ) -> None:
        self._sealing_key = sealing_key
        self._warnings = warnings
        self._keeps_seal = keeps_seal
        self._has_phase = False

    def read(self, item: WireItem, path: str) -> ParsedItem:
        """Parse an item. Raises RequestError, which names the offending field below
        `path`.
        """
        kind = find_item_type(item, path)
        self._check_labels(item, kind, path)
        if (read := _READERS.get(kind)) is not None:
            return read(item, path)
        match kind:
            case "reasoning":
                return self._read_reasoning(item, path)
            case "compaction":
                sealed = require_value(item.encrypted_content, f"{path}.encrypted_content")
                key = self._sealing_key
                summary = None if key is None else key.unseal(Purpose.COMPACTION, sealed)
                # A summary replaces all that the assistant wrote before, so unlike
                # reasoning it cannot be left out with a warning.
                if summary is None:
                    raise _foreign_content_error(path)
                return ItemSummary(summary)
            case "item_reference" if not item.id:
                raise missing_parameter(f"{path}.id")
            case _ if kind in CALL_TYPES:
                return self._read_client_call(item, kind, path)
            case _ if kind in HOSTED_TYPES:
                return read_hosted_item(item, kind, path, self._warnings)
            case _:
                """References are resolved by the server's store, triggers are handled
                by the reader of the body.
                """
        return None

    def _check_labels(self, item: WireItem, kind: str, path: str) -> None:
        """Warn about labels that are unknown to OpenAI, or mean nothing to a prompt."""
        statuses = _STATUSES.get(kind, ITEM_STATUSES)
        if item.status is not None and item.status not in statuses:
            self._warnings.append(
                f"{path}.status is ignored: {abbreviate(item.status)} is none of "
                f"{', '.join(statuses)}"
            )
        # Clients that replay a conversation of OpenAI send it with each message.
        if item.phase is not None and not self._has_phase:
            self._has_phase = True
            self._warnings.append(f"{path}.phase is ignored: the prompt has no place for it")

    def _read_reasoning(self, item: WireItem, path: str) -> Reasoning:
        """Return the decrypted reasoning if possible, else the content, else the
        summary.
        """
        sealed = item.encrypted_content
        key = self._sealing_key
        unsealed = None if sealed is None or key is None else key.unseal(Purpose.REASONING, sealed)
        # Sealed reasoning is complete, whereas the visible text may be a summary of it.
        if unsealed is not None:
            return unpack_reasoning(unsealed)
        if sealed is not None and key is not None and key.check is VerificationMode.STRICT:
            raise _foreign_content_error(path)
        texts = read_texts(item.content) or read_texts(item.summary)
        seal = ""
        if sealed is not None and not self._keeps_seal:
            replacement = "replaced by its visible content" if texts else "left out"
            self._warnings.append(
                f"{path}: its encrypted reasoning cannot be read here; it was {replacement}"
            )
        elif sealed:
            # The writer sends an OpenAI seal without its kind, as OpenAI does, so a
            # seal without a kind is OpenAI's.
            seal = (
                sealed
                if any(kind.read(sealed) is not None for kind in SealKind)
                else SealKind.OPENAI + sealed
            )
        return Reasoning("\n\n".join(texts), seal=seal)

    def _read_client_call(self, item: WireItem, kind: str, path: str) -> ItemCall | None:
        call_id = item.call_id or item.id
        if not call_id:
            raise missing_parameter(f"{path}.call_id")
        # OpenAI's own search has no call that a client could answer, so the tools it
        # found are all that is left of it.
        if kind == "tool_search_call" and not item.call_id:
            self._warnings.append(
                f"{path}: a search that a server made cannot be replayed here; it was left out"
            )
            return None
        tool = CLIENT_TOOLS[find_kinds(kind)[0]]
        return ItemCall(call_id, tool.read_call(item, path).decode(), kind=kind)


def _read_message(item: WireItem, path: str) -> Message | AssistantParts:
    if item.role is None:
        raise missing_parameter(f"{path}.role")
    role = check_one_of(item.role, ROLES, f"{path}.role")
    parts = _read_content(item.content, f"{path}.content")
    if role == "assistant":
        return AssistantParts(parts)
    if item.content is None:
        raise missing_parameter(f"{path}.content")
    # A refusal in another role than the assistant's is plain text.
    texts = [Text(part.text) if isinstance(part, Refusal) else part for part in parts]
    return Message(Role(role), tuple(texts))


def _read_call(item: WireItem, path: str) -> ItemCall:
    custom = item.type == "custom_tool_call"
    raw, field = (item.input, "input") if custom else (item.arguments, "arguments")
    arguments = read_arguments(raw, f"{path}.{field}")
    call_id = item.call_id or item.id
    if not call_id:
        raise missing_parameter(f"{path}.call_id")
    if not item.name:
        raise missing_parameter(f"{path}.name")
    return ItemCall(call_id, arguments, item.name, item.namespace, custom=custom)


def _read_result(item: WireItem, path: str) -> ToolResult | FreeOutput:
    if not item.call_id and not item.name:
        raise missing_parameter(f"{path}.call_id")
    content = _read_output(require_value(item.output, f"{path}.output"), f"{path}.output")
    if item.call_id:
        return ToolResult(item.call_id, content)
    return FreeOutput(item.name or "", item.namespace, content)


def _read_client_result(item: WireItem, path: str) -> ToolResult | LoadedTools:
    """Return the output of a tool that the client ran. The types of a local shell's
    output have no `call_id`.
    """
    kind = item.type
    output = item.output
    is_error = item.status == "failed"
    if kind == "tool_search_output":
        # Without a call id OpenAI's own search found the tools. It has no call to
        # answer, but they can be called too.
        return LoadedTools(read_tools(item, path), item.call_id or None, is_error)
    # Its output is optional, but a template shows an empty result as nothing, and the
    # model would apply it again.
    if kind == "apply_patch_call_output" and not output:
        content: tuple[ResultPart, ...] = (
            Text("The patch failed." if is_error else "The patch was applied."),
        )
    elif output is None:
        raise missing_parameter(f"{path}.output")
    elif kind == "shell_call_output" and isinstance(output, list):
        content = (Text(render_shell_output(output)),)
    elif kind == "computer_call_output" and isinstance(output, dict):
        content = (_read_image(read_screen(output), f"{path}.output"),)
    else:
        content = _read_output(output, f"{path}.output")
    call_id = item.call_id or item.id
    if not call_id:
        raise missing_parameter(f"{path}.call_id")
    return ToolResult(call_id, content, is_error=is_error)


def _read_additional_tools(item: WireItem, path: str) -> LoadedTools:
    return LoadedTools(read_tools(item, path))


_READERS: Mapping[str, Callable[[WireItem, str], ParsedItem]] = {
    "message": _read_message,
    "function_call": _read_call,
    "custom_tool_call": _read_call,
    "function_call_output": _read_result,
    "custom_tool_call_output": _read_result,
    ADDITIONAL_TOOLS: _read_additional_tools,
    CONFIGURATION_UPDATE: read_update,
    **dict.fromkeys(sorted(OUTPUT_TYPES), _read_client_result),
}
"""Functions that parse items which need no sealing key, by item type."""


def read_raw_items(
    items: Sequence[WireItem], fields: Mapping[str, Raw], name: str
) -> list[dict[str, Raw]]:
    """Return the original fields of the items that are stored as they were sent; empty
    for others.

    name: the body's field that contains the items.
    """
    # The input is decoded a second time only for the items whose structs do not cover
    # all of their fields.
    if not any([item.type in RAW_TYPES for item in items]):
        return [{}] * len(items)
    raw = msgspec.json.decode(fields[name], type=list[dict[str, Raw]])
    return [each if item.type in RAW_TYPES else {} for item, each in zip(items, raw, strict=True)]


def _foreign_content_error(path: str) -> RequestError:
    return invalid_value(
        f"{path}.encrypted_content", "it is damaged, or was not created by this server for this key"
    )


def _read_output(output: WireContent, path: str) -> tuple[ResultPart, ...]:
    """Return the content of a tool's output; a refusal becomes plain text."""
    parts = _read_content(output, path)
    return tuple(
        part
        if isinstance(part, ResultPart)
        else Text(part.text if isinstance(part, Refusal) else "")
        for part in parts
    )


def _read_content(content: WireContent | None, path: str) -> tuple[Part, ...]:
    if isinstance(content, dict):
        raise invalid_value(path, "expected a string or an array of parts")
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(
        [
            Text(part) if isinstance(part, str) else _read_part(part, f"{path}[{i}]")
            for i, part in enumerate(content or ())
        ]
    )


def _read_part(part: ResponsesContentPart, path: str) -> Part:
    kind = check_one_of(require_value(part.type, f"{path}.type"), PART_TYPES, f"{path}.type")
    match kind:
        case "refusal":
            return Refusal(require_value(part.refusal, f"{path}.refusal"))
        case "input_image":
            return _read_image(part, path)
        case "input_file":
            if part.file_id:
                file: MediaSource = UploadedMedia(part.file_id)
            elif part.file_url is not None:
                file = read_url(part.file_url, f"{path}.file_url")
            else:
                file = read_base64(
                    require_value(part.file_data, f"{path}.file_data"), None, f"{path}.file_data"
                )
            return File(file, part.filename)
        case "input_audio":
            path = f"{path}.input_audio"
            audio = require_value(part.input_audio, path)
            format = check_one_of(audio.format, AUDIO_FORMATS, f"{path}.format")
            return Audio(read_base64(audio.data, f"audio/{format}", f"{path}.data"), format)
        case _:
            return Text(require_value(part.text, f"{path}.text"))


def read_tools(item: WireItem, path: str) -> list[ResponsesWireTool]:
    """Return the tools of an item."""
    if not bytes(item.tools):
        raise missing_parameter(f"{path}.tools")
    try:
        return msgspec.json.decode(item.tools, type=list[ResponsesWireTool])
    except msgspec.MsgspecError as error:
        raise invalid_value(f"{path}.tools", str(error)) from None


def read_texts(content: WireContent | None) -> list[str]:
    """Return the texts of a reasoning item's content or summary; other parts are
    ignored.
    """
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        return []
    texts = (part if isinstance(part, str) else part.text for part in content)
    return [text for text in texts if text]


def read_arguments(raw: Raw, param: str) -> str:
    """Return a call's arguments as text. Invalid JSON is replayed unchanged; some local
    clients send an object.
    """
    text = bytes(raw).strip()
    if text in (b"", b"null"):
        return ""
    try:
        return (
            msgspec.json.decode(text, type=str)
            if text.startswith(b'"')
            else read_json_object(raw, param) or ""
        )
    except (RequestError, msgspec.MsgspecError, UnicodeDecodeError):
        raise invalid_value(param, "expected a string") from None


def _read_image(part: ResponsesContentPart, path: str) -> Image:
    """Read an image; Chat's form, an object with a url, is accepted too."""
    url = part.image_url
    detail = part.detail
    if url is not None and not isinstance(url, str):
        url, detail = url.url, url.detail or detail
    detail = check_one_of(detail or "auto", ("auto", "low", "high", "original"), f"{path}.detail")
    if url is not None:
        return Image(read_image_url(url, f"{path}.image_url"), detail)
    return Image(UploadedMedia(require_value(part.file_id, f"{path}.image_url")), detail)
