"""Converts canonical messages to the values that chat templates read, tools too.

The shapes are those of transformers' `apply_chat_template`: OpenAI's messages, but with
a call's arguments as an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from ..core.errors import Unsupported
from ..core.json_types import JsonObject, JsonValue
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
    build_misplaced_error,
)
from .json_values import InvalidJson, decode
from .template import TemplateFeatures

_LEADING_ROLES = (Role.SYSTEM, Role.DEVELOPER)


StringVisitor = Callable[[str], str]
"""Maps a string of user text. Keys and words that the template compares are not passed
to it.
"""


class MessageOptions(msgspec.Struct, frozen=True):
    """Options for the conversion of messages to a template's values.

    features: what the template supports.
    reasoning_markers: markers at which the template would split an assistant's text
    into reasoning and content; they are broken as control tokens in user text, so the
    split is done here.
    allows_images: images are passed on as `{"type": "image"}`; otherwise they raise
        Unsupported, as other media do.
    """

    features: TemplateFeatures
    reasoning_markers: frozenset[str] = frozenset()
    allows_images: bool = False


def build_message_values(
    messages: Sequence[Message], options: MessageOptions, visit: StringVisitor
) -> list[JsonObject]:
    """Build the template's `messages`. Raises RequestError, Unsupported."""
    names: dict[str, str] = {}
    supported = list(messages)
    # The leading messages of the system and the developer.
    count = 0
    # A loop for all, since most conversations need nothing of this.
    for index, message in enumerate(messages):
        role = message.role
        if role is Role.ASSISTANT:
            names.update(
                [(part.id, part.name) for part in message.parts if isinstance(part, ToolCall)]
            )
        elif role in _LEADING_ROLES:
            if count == index:
                count += 1
            if role is Role.DEVELOPER and not options.features.supports_developer:
                supported[index] = msgspec.structs.replace(message, role=Role.SYSTEM)
    # Leading system messages are merged into one: many templates reject several.
    if count > 1:
        leading = supported[:count]
        texts = list[str]()
        for message in leading:
            lines = [part.text for part in message.parts if isinstance(part, Text)]
            if len(lines) < len(message.parts):
                raise Unsupported(
                    "System and developer messages can contain only text.", param="messages"
                )
            texts.append("\n".join(lines))
        role = (
            Role.DEVELOPER
            if any(message.role is Role.DEVELOPER for message in leading)
            else Role.SYSTEM
        )
        supported[:count] = [Message(role, (Text("\n\n".join(texts)),))]
    converter = _MessageConverter(options, names, visit)
    values: list[JsonObject] = []
    for message in supported:
        values += converter.convert(message)
    return values


def build_tool_values(tools: Iterable[Tool], visit: StringVisitor) -> list[JsonValue]:
    """Build the template's `tools`: functions in OpenAI's format; a custom tool has one
    string parameter `input`.
    """
    values: list[JsonValue] = []
    for tool in tools:
        description: JsonObject = (
            {} if tool.description is None else {"description": visit(tool.description)}
        )
        parameters: JsonValue = {"type": "object", "properties": {}}
        if isinstance(tool, FunctionTool):
            if tool.parameters is not None:
                parameters = map_strings(_decode_object_or_text(tool.parameters), visit)
        else:
            text = "The input of the tool, as free text."
            if tool.definition is not None:
                text = (
                    f"The input of the tool. It must follow this {tool.syntax or 'lark'} "
                    f"grammar:\n{tool.definition}"
                )
            argument: JsonObject = {"type": "string", "description": visit(text)}
            parameters = {
                "type": "object",
                "properties": {"input": argument},
                "required": ["input"],
            }
        function: JsonObject = {"name": visit(tool.name), **description, "parameters": parameters}
        values.append({"type": "function", "function": function})
    return values


def map_strings(value: JsonValue, visit: StringVisitor) -> JsonValue:
    """Map all strings in JSON that the user wrote, including keys."""
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
    """Converts the messages of one conversation.

    names: tool names by call id.
    """

    def __init__(
        self, options: MessageOptions, names: Mapping[str, str], visit: StringVisitor
    ) -> None:
        self._features = options.features
        self._reasoning_markers = options.reasoning_markers
        self._allows_images = options.allows_images
        self._names = names
        self._visit_string = visit

    def convert(self, message: Message) -> list[JsonObject]:
        """Return the message, then one message per tool result in it."""
        if message.role is Role.ASSISTANT:
            return [self._convert_assistant(message)]
        values: list[JsonObject] = []
        pending: list[Part] = []
        for part in message.parts:
            if not isinstance(part, ToolResult):
                pending.append(part)
                continue
            if pending:
                values.append(self._convert_plain(message, pending))
                pending = []
            content: Sequence[Part] = part.content
            if part.is_error:
                # Templates have no field for failure, so the result's text shows it.
                first, *others = content or (Text(""),)
                if not isinstance(first, Text):
                    content = [Text("Error:"), first, *others]
                elif not first.text.lower().startswith("error"):
                    content = [Text(f"Error: {first.text}"), *others]
            name = self._names.get(
                part.call_id, message.name if message.role is Role.TOOL else None
            )
            result_content = self._convert_content(content, "\n")
            values.append(
                {
                    "role": "tool",
                    "content": result_content,
                    "tool_call_id": self._visit_string(part.call_id),
                    **self._build_name_field(name),
                }
            )
        # An empty message stays a message: templates may require that roles alternate.
        if pending or not message.parts:
            values.append(self._convert_plain(message, pending))
        return values

    def _convert_plain(self, message: Message, parts: Sequence[Part]) -> JsonObject:
        value: JsonObject = {
            "role": str(message.role),
            "content": self._convert_content(parts, "\n"),
        }
        if message.name is not None:
            value |= self._build_name_field(message.name)
        return value

    def _build_name_field(self, name: str | None) -> JsonObject:
        return {} if name is None else {"name": self._visit_string(name)}

    def _convert_assistant(self, message: Message) -> JsonObject:
        calls: list[JsonValue] = [
            self._convert_call(part) for part in message.parts if isinstance(part, ToolCall)
        ]
        reasoning = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
        content_parts: list[Part] = [
            part for part in message.parts if not isinstance(part, (ToolCall, Reasoning))
        ]
        text = "".join(part.text for part in content_parts if isinstance(part, Text))
        for end_marker in () if reasoning else self._reasoning_markers:
            # From the right: reasoning may mention its own marker, the answer after it
            # does not.
            text_before, marker, text_after = text.rpartition(end_marker)
            if marker:
                begin_marker = end_marker.replace("/", "", 1)
                reasoning = text_before.rpartition(begin_marker)[2].strip("\n")
                other_parts = [part for part in content_parts if not isinstance(part, Text)]
                content_parts = [Text(text_after.lstrip("\n")), *other_parts]
                break
        content = self._convert_content(content_parts, "")
        # Templates test `content is none` to omit the text; an empty string would
        # become an empty line in some.
        if calls and not content and self._features.accepts_null_content:
            content = None
        value: JsonObject = {
            "role": "assistant",
            "content": content,
            **self._build_name_field(message.name),
        }
        if reasoning:
            names = ("reasoning_content", "reasoning", "thinking")
            reasoning_value = self._visit_string(reasoning)
            # Given under all names in use, as templates read different ones. `thinking`
            # is also a switch in some.
            value |= {
                name: reasoning_value
                for name in names
                if name != "thinking" or name in self._features.fields
            }
        return {**value, "tool_calls": calls} if calls else value

    def _convert_content(self, parts: Sequence[Part], separator: str) -> JsonValue:
        """Return a string, or a list of parts if there are several and the template
        supports lists.

        separator: joins texts in a string; an assistant's texts are chunks of one.
        """
        features = self._features
        # Nearly every content of templates that accept strings.
        if len(parts) == 1 and type(only := parts[0]) is Text and features.accepts_strings:
            return self._visit_string(only.text)
        texts = [part.text for part in parts if isinstance(part, (Text, Refusal))]
        only_text = len(texts) == len(parts)
        has_several = len(parts) > 1 and separator != ""
        if not features.accepts_parts or (
            only_text and features.accepts_strings and not has_several
        ):
            others = [part for part in parts if not isinstance(part, (Text, Refusal, Reasoning))]
            if any(self._convert_part(part).keys() == {"type"} for part in others):
                raise Unsupported(
                    "The chat template of this model supports only text.", param="messages"
                )
            return self._visit_string(separator.join(texts))
        return [self._convert_part(part) for part in parts]

    def _convert_part(self, part: Part) -> JsonObject:
        match part:
            case Text(text) | Refusal(text) | Reasoning(text):
                return {"type": "text", "text": self._visit_string(text)}
            case Image() | Audio() | File():
                kind = type(part).__name__.lower()
                if not (self._allows_images and isinstance(part, Image)):
                    raise Unsupported(
                        f"This model does not support {kind} input.", param="messages"
                    )
                return {"type": kind}
            case ToolCall() | ToolResult():
                raise build_misplaced_error(part)

    def _convert_call(self, call: ToolCall) -> JsonObject:
        if self._features.needs_string_arguments:
            text = (
                msgspec.json.encode({"input": call.arguments}).decode()
                if call.custom
                else call.arguments or "{}"
            )
            arguments: JsonValue = self._visit_string(text)
        elif call.custom:
            arguments = {"input": self._visit_string(call.arguments)}
        else:
            arguments = map_strings(
                _decode_object_or_text(call.arguments or "{}"), self._visit_string
            )
        function: JsonObject = {"name": self._visit_string(call.name), "arguments": arguments}
        return {"id": self._visit_string(call.id), "type": "function", "function": function}


def _decode_object_or_text(text: str) -> JsonObject | str:
    """Decode a JSON object; return any other text unchanged."""
    try:
        value = decode(text)
    except InvalidJson:
        return text
    return value if isinstance(value, dict) else text
