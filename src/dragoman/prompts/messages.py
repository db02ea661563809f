"""Canonical messages and tools as the values that chat templates read. Pure; knows no tokens and no wire format.

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
from .traits import Traits
from .values import Json, NotJson, Object, decode

_LEADING = (Role.SYSTEM, Role.DEVELOPER)

Visit = Callable[[str], str]
"""What becomes of a string that a user wrote. The keys and words that the template compares are not given to it."""


class Reading(msgspec.Struct, frozen=True):
    """How a template reads messages.

    thoughts: marks at which the template itself would cut an assistant's text, to tell its reasoning from the rest,
    and which it will not find there since they are control tokens: the cut is made here. images: they are
    passed on as `{"type": "image"}`; otherwise they raise Unsupported, as all other media do.
    """

    traits: Traits
    thoughts: frozenset[str] = frozenset()
    images: bool = False


def message_values(messages: Sequence[Message], reading: Reading, visit: Visit) -> list[Object]:
    """What a template gets as `messages`. Raises RequestError, Unsupported."""
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    writer = _Writer(reading, names, visit)
    return [value for message in _merge_leading(messages, reading.traits) for value in writer.values(message)]


def tool_values(tools: Iterable[Tool], visit: Visit) -> list[Json]:
    """What a template gets as `tools`: functions as OpenAI writes them; a custom tool takes one string `input`."""
    return [_tool(tool, visit) for tool in tools]


def visited(value: Json, visit: Visit) -> Json:
    """JSON of the user's own: all strings in it are visited, keys too."""
    match value:
        case str():
            return visit(value)
        case dict():
            return {visit(key): visited(member, visit) for key, member in value.items()}
        case list():
            return [visited(item, visit) for item in value]
        case _:
            return value


class _Writer:
    """Writes the turns of one conversation. names: of the tools, by the id of the call."""

    def __init__(self, reading: Reading, names: Mapping[str, str], visit: Visit) -> None:
        self._traits, self._thoughts, self._images = reading.traits, reading.thoughts, reading.images
        self._names, self._visit = names, visit

    def values(self, message: Message) -> Iterator[Object]:
        """One message, and one more for each tool result in it."""
        if message.role is Role.ASSISTANT:
            yield self._assistant(message)
            return
        pending: list[Part] = []
        for part in message.parts:
            if not isinstance(part, ToolResult):
                pending.append(part)
                continue
            if pending:
                yield self._plain(message, pending)
                pending = []
            yield self._result(part, message)
        if pending or not message.parts:
            yield self._plain(message, pending)

    def _plain(self, message: Message, parts: Sequence[Part]) -> Object:
        return {"role": str(message.role), "content": self._content(parts, "\n"), **self._name(message.name)}

    def _name(self, name: str | None) -> Object:
        return {} if name is None else {"name": self._visit(name)}

    def _result(self, result: ToolResult, message: Message) -> Object:
        content = _as_error(result.content) if result.is_error else result.content
        name = self._names.get(result.call_id, message.name if message.role is Role.TOOL else None)
        shown = self._content(content, "\n")
        return {"role": "tool", "content": shown, "tool_call_id": self._visit(result.call_id), **self._name(name)}

    def _assistant(self, message: Message) -> Object:
        calls: list[Json] = [self._call(part) for part in message.parts if isinstance(part, ToolCall)]
        thought = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
        said: list[Part] = [part for part in message.parts if not isinstance(part, (ToolCall, Reasoning))]
        if not thought:
            thought, said = self._cut_thought(said)
        content = self._content(said, "")
        if calls and not content and self._traits.null_content:
            content = None
        value: Object = {"role": "assistant", "content": content, **self._name(message.name)}
        if thought:
            names = ("reasoning_content", "reasoning", "thinking")
            shown = self._visit(thought)
            value |= {name: shown for name in names if name != "thinking" or name in self._traits.fields}
        return {**value, "tool_calls": calls} if calls else value

    def _cut_thought(self, said: list[Part]) -> tuple[str, list[Part]]:
        text = "".join(part.text for part in said if isinstance(part, Text))
        for end in self._thoughts:
            before, found, after = text.rpartition(end)
            if found:
                begin = end.replace("/", "", 1)
                rest = [part for part in said if not isinstance(part, Text)]
                return before.rpartition(begin)[2].strip("\n"), [Text(after.lstrip("\n")), *rest]
        return "", said

    def _content(self, parts: Sequence[Part], separator: str) -> Json:
        """A string, or a list of parts where there are several and the template takes lists.

        separator: what joins texts in a string; an assistant's texts are pieces of one.
        """
        texts = [part.text for part in parts if isinstance(part, (Text, Refusal))]
        only_text = len(texts) == len(parts)
        several = len(parts) > 1 and separator != ""
        if not self._traits.parts or (only_text and self._traits.strings and not several):
            self._check_text(parts)
            return self._visit(separator.join(texts))
        return [self._part(part) for part in parts]

    def _check_text(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if self._part(part).keys() == {"type"}:
                raise Unsupported("The chat template of this model supports only text.", param="messages")

    def _part(self, part: Part) -> Object:
        match part:
            case Text(text) | Refusal(text) | Reasoning(text):
                return {"type": "text", "text": self._visit(text)}
            case Image() | Audio() | File():
                kind = type(part).__name__.lower()
                if not (self._images and isinstance(part, Image)):
                    raise Unsupported(f"This model does not support {kind} input.", param="messages")
                return {"type": kind}
            case ToolCall():
                raise RequestError("Only an assistant message can contain tool calls.", param="messages")
            case ToolResult():
                raise RequestError("An assistant message cannot contain tool results.", param="messages")

    def _call(self, call: ToolCall) -> Object:
        if call.custom:
            arguments: Json = {"input": self._visit(call.arguments)}
        else:
            arguments = visited(_object_or_text(call.arguments or "{}"), self._visit)
        function: Object = {"name": self._visit(call.name), "arguments": arguments}
        return {"id": self._visit(call.id), "type": "function", "function": function}


def _merge_leading(messages: Sequence[Message], traits: Traits) -> list[Message]:
    """Messages for the system stand first and as one: many templates refuse any other number of them."""
    known = [_known(message, traits) for message in messages]
    count = next((n for n, message in enumerate(known) if message.role not in _LEADING), len(known))
    if count < 2:
        return known
    texts = ["\n".join(_text(part) for part in message.parts) for message in known[:count]]
    role = Role.DEVELOPER if any(message.role is Role.DEVELOPER for message in known[:count]) else Role.SYSTEM
    return [Message(role, (Text("\n\n".join(texts)),)), *known[count:]]


def _known(message: Message, traits: Traits) -> Message:
    if message.role is Role.DEVELOPER and not traits.developer:
        return msgspec.structs.replace(message, role=Role.SYSTEM)
    return message


def _text(part: Part) -> str:
    if isinstance(part, Text):
        return part.text
    raise Unsupported("System and developer messages can contain only text.", param="messages")


def _as_error(content: Sequence[Text | Image | Audio | File]) -> Sequence[Text | Image | Audio | File]:
    """Templates know no failed results, so that the text has to say it."""
    first, *rest = content or (Text(""),)
    if not isinstance(first, Text):
        return [Text("Error:"), first, *rest]
    return content if first.text.lower().startswith("error") else [Text(f"Error: {first.text}"), *rest]


def _object_or_text(text: str) -> Object | str:
    """Arguments as an object, or as they stand if they are not JSON of one."""
    try:
        value = decode(text)
    except NotJson:
        return text
    return value if isinstance(value, dict) else text


def _tool(tool: Tool, visit: Visit) -> Object:
    described: Object = {} if tool.description is None else {"description": visit(tool.description)}
    schema = _parameters(tool, visit)
    return {"type": "function", "function": {"name": visit(tool.name), **described, "parameters": schema}}


def _parameters(tool: Tool, visit: Visit) -> Json:
    if isinstance(tool, FunctionTool):
        if tool.parameters is None:
            return {"type": "object", "properties": {}}
        return visited(_object_or_text(tool.parameters), visit)
    told = "The input of the tool, as free text."
    if tool.definition is not None:
        told = f"The input of the tool. It must follow this {tool.syntax or 'lark'} grammar:\n{tool.definition}"
    argument: Object = {"type": "string", "description": visit(told)}
    return {"type": "object", "properties": {"input": argument}, "required": ["input"]}
