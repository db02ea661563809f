"""Converts canonical messages and tools to the values that chat templates read. Pure; knows no tokens and no wire
format.

The shapes are those of transformers' `apply_chat_template`: OpenAI's messages, but with a call's arguments as an
object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from ..core.errors import RequestError, Unsupported
from ..core.message import (
    Audio,
    File,
    FunctionTool,
    Image,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from .capabilities import TemplateFeatures
from .json_values import InvalidJson, Json, JsonDict, decode

_LEADING_ROLES = (Role.SYSTEM, Role.DEVELOPER)

StringVisitor = Callable[[str], str]
"""Maps a string of user text. Keys and words that the template compares are not passed to it."""


class MessageOptions(msgspec.Struct, frozen=True):
    """How a template reads messages.

    features: what the template supports.
    reasoning_markers: markers at which the template would split an assistant's text into reasoning and content; they
    are broken as control tokens in user text, so the split is done here.
    allows_images: images are passed on as `{"type": "image"}`; otherwise they raise Unsupported, as other media do.
    """

    features: TemplateFeatures
    reasoning_markers: frozenset[str] = frozenset()
    allows_images: bool = False


def build_message_values(messages: Sequence[Message], options: MessageOptions, visit: StringVisitor) -> list[JsonDict]:
    """Build the template's `messages`. Raises RequestError, Unsupported."""
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    converter = _MessageConverter(options, names, visit)
    return [
        value for message in _merge_leading_messages(messages, options.features) for value in converter.convert(message)
    ]


def build_tool_values(tools: Iterable[Tool], visit: StringVisitor) -> list[Json]:
    """Build the template's `tools`: functions in OpenAI's format; a custom tool has one string parameter `input`."""
    return [_build_tool(tool, visit) for tool in tools]


def map_strings(value: Json, visit: StringVisitor) -> Json:
    """Map all strings in JSON that the user wrote, keys included."""
    match value:
        case str():
            return visit(value)
        case dict():
            return {visit(key): map_strings(member, visit) for key, member in value.items()}
        case list():
            return [map_strings(item, visit) for item in value]
        case _:
            return value


class _MessageConverter:
    """Converts the messages of one conversation. names: tool names by call id."""

    def __init__(self, options: MessageOptions, names: Mapping[str, str], visit: StringVisitor) -> None:
        self._features, self._reasoning_markers, self._allows_images = (
            options.features,
            options.reasoning_markers,
            options.allows_images,
        )
        self._names, self._visit_string = names, visit

    def convert(self, message: Message) -> Iterator[JsonDict]:
        """Yield the message, then one message per tool result in it."""
        if message.role is Role.ASSISTANT:
            yield self._convert_assistant(message)
            return
        pending: list[Part] = []
        for part in message.parts:
            if not isinstance(part, ToolResult):
                pending.append(part)
                continue
            if pending:
                yield self._convert_plain(message, pending)
                pending = []
            content = _prefix_error(part.content) if part.is_error else part.content
            name = self._names.get(part.call_id, message.name if message.role is Role.TOOL else None)
            result_content = self._convert_content(content, "\n")
            yield {
                "role": "tool",
                "content": result_content,
                "tool_call_id": self._visit_string(part.call_id),
                **self._build_name_field(name),
            }
        # An empty message stays a message: templates may require that roles alternate.
        if pending or not message.parts:
            yield self._convert_plain(message, pending)

    def _convert_plain(self, message: Message, parts: Sequence[Part]) -> JsonDict:
        return {
            "role": str(message.role),
            "content": self._convert_content(parts, "\n"),
            **self._build_name_field(message.name),
        }

    def _build_name_field(self, name: str | None) -> JsonDict:
        return {} if name is None else {"name": self._visit_string(name)}

    def _convert_assistant(self, message: Message) -> JsonDict:
        calls: list[Json] = [self._convert_call(part) for part in message.parts if isinstance(part, ToolCall)]
        reasoning = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
        content_parts: list[Part] = [part for part in message.parts if not isinstance(part, (ToolCall, Reasoning))]
        if not reasoning:
            reasoning, content_parts = self._split_reasoning(content_parts)
        content = self._convert_content(content_parts, "")
        # Templates test `content is none` to leave the text out; an empty string would be a line of its own in some.
        if calls and not content and self._features.accepts_null_content:
            content = None
        value: JsonDict = {"role": "assistant", "content": content, **self._build_name_field(message.name)}
        if reasoning:
            names = ("reasoning_content", "reasoning", "thinking")
            reasoning_value = self._visit_string(reasoning)
            # Under all names in use, since a template reads one; `thinking` alone is also the switch in some templates.
            value |= {name: reasoning_value for name in names if name != "thinking" or name in self._features.fields}
        return {**value, "tool_calls": calls} if calls else value

    def _split_reasoning(self, content_parts: list[Part]) -> tuple[str, list[Part]]:
        text = "".join(part.text for part in content_parts if isinstance(part, Text))
        for end_marker in self._reasoning_markers:
            # From the right: reasoning may mention its own marker, the answer after it does not.
            text_before, marker, text_after = text.rpartition(end_marker)
            if marker:
                begin_marker = end_marker.replace("/", "", 1)
                other_parts = [part for part in content_parts if not isinstance(part, Text)]
                return text_before.rpartition(begin_marker)[2].strip("\n"), [
                    Text(text_after.lstrip("\n")),
                    *other_parts,
                ]
        return "", content_parts

    def _convert_content(self, parts: Sequence[Part], separator: str) -> Json:
        """A string, or a list of parts where there are several and the template supports lists.

        separator: joins texts in a string; an assistant's texts are chunks of one.
        """
        texts = [part.text for part in parts if isinstance(part, (Text, Refusal))]
        only_text = len(texts) == len(parts)
        has_several = len(parts) > 1 and separator != ""
        if not self._features.accepts_parts or (only_text and self._features.accepts_strings and not has_several):
            if not only_text:
                self._check_text(parts)
            return self._visit_string(separator.join(texts))
        return [self._convert_part(part) for part in parts]

    def _check_text(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, (Text, Refusal, Reasoning)):
                continue
            if self._convert_part(part).keys() == {"type"}:
                raise Unsupported("The chat template of this model supports only text.", param="messages")

    def _convert_part(self, part: Part) -> JsonDict:
        match part:
            case Text(text) | Refusal(text) | Reasoning(text):
                return {"type": "text", "text": self._visit_string(text)}
            case Image() | Audio() | File():
                kind = type(part).__name__.lower()
                if not (self._allows_images and isinstance(part, Image)):
                    raise Unsupported(f"This model does not support {kind} input.", param="messages")
                return {"type": kind}
            case ToolCall():
                raise RequestError("Only an assistant message can contain tool calls.", param="messages")
            case ToolResult():
                raise RequestError("An assistant message cannot contain tool results.", param="messages")

    def _convert_call(self, call: ToolCall) -> JsonDict:
        if self._features.needs_string_arguments:
            text = msgspec.json.encode({"input": call.arguments}).decode() if call.custom else call.arguments or "{}"
            arguments: Json = self._visit_string(text)
        elif call.custom:
            arguments = {"input": self._visit_string(call.arguments)}
        else:
            arguments = map_strings(_decode_object_or_text(call.arguments or "{}"), self._visit_string)
        function: JsonDict = {"name": self._visit_string(call.name), "arguments": arguments}
        return {"id": self._visit_string(call.id), "type": "function", "function": function}


def _merge_leading_messages(messages: Sequence[Message], features: TemplateFeatures) -> list[Message]:
    """Merge leading system messages into one: many templates reject several."""
    supported = [_replace_unsupported_role(message, features) for message in messages]
    count = next((n for n, message in enumerate(supported) if message.role not in _LEADING_ROLES), len(supported))
    if count < 2:
        return supported
    texts = ["\n".join(_require_text(part) for part in message.parts) for message in supported[:count]]
    role = Role.DEVELOPER if any(message.role is Role.DEVELOPER for message in supported[:count]) else Role.SYSTEM
    return [Message(role, (Text("\n\n".join(texts)),)), *supported[count:]]


def _replace_unsupported_role(message: Message, features: TemplateFeatures) -> Message:
    if message.role is Role.DEVELOPER and not features.supports_developer:
        return msgspec.structs.replace(message, role=Role.SYSTEM)
    return message


def _require_text(part: Part) -> str:
    if isinstance(part, Text):
        return part.text
    raise Unsupported("System and developer messages can contain only text.", param="messages")


def _prefix_error(content: Sequence[Text | Image | Audio | File]) -> Sequence[Text | Image | Audio | File]:
    """Prefix a failed tool result's text, since templates have no field for failure."""
    first, *rest = content or (Text(""),)
    if not isinstance(first, Text):
        return [Text("Error:"), first, *rest]
    return content if first.text.lower().startswith("error") else [Text(f"Error: {first.text}"), *rest]


def _decode_object_or_text(text: str) -> JsonDict | str:
    """Arguments as an object, or unchanged if they are not a JSON object."""
    try:
        value = decode(text)
    except InvalidJson:
        return text
    return value if isinstance(value, dict) else text


def _build_tool(tool: Tool, visit: StringVisitor) -> JsonDict:
    description: JsonDict = {} if tool.description is None else {"description": visit(tool.description)}
    schema = _build_parameters(tool, visit)
    return {"type": "function", "function": {"name": visit(tool.name), **description, "parameters": schema}}


def _build_parameters(tool: Tool, visit: StringVisitor) -> Json:
    if isinstance(tool, FunctionTool):
        if tool.parameters is None:
            return {"type": "object", "properties": {}}
        return map_strings(_decode_object_or_text(tool.parameters), visit)
    description = "The input of the tool, as free text."
    if tool.definition is not None:
        description = f"The input of the tool. It must follow this {tool.syntax or 'lark'} grammar:\n{tool.definition}"
    argument: JsonDict = {"type": "string", "description": visit(description)}
    return {"type": "object", "properties": {"input": argument}, "required": ["input"]}
