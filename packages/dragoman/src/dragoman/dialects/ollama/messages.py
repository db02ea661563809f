"""Parses the messages of Ollama's /api/chat, with their images, calls and tools."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from ...core.errors import RequestError, Unsupported
from ...core.image_header import check_image
from ...core.message import (
    FunctionTool,
    Image,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from ..field_errors import abbreviate, check_one_of, invalid_value
from ..media import read_base64
from ..request_body import read_json_object
from .wire import (
    OllamaTool,
    OllamaWireMessage,
)

ROLES = ("system", "user", "assistant", "tool")


_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def read_messages(messages: Sequence[OllamaWireMessage]) -> tuple[Message, ...]:
    """Parse messages. Raises RequestError with the path of the invalid field."""
    reader = _MessageReader()
    return tuple(reader.read(message, f"messages[{i}]") for i, message in enumerate(messages))


class _MessageReader:
    """Parses messages in order, and matches each tool result to its call.

    Only newer clients of Ollama send call ids; others name the tool in a result. A
    result without an id answers the first open call of its tool, or the first open call
    if it does not name a tool.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        # Ordered dictionaries find the first open call, and remove any, without a
        # search: a client sends many calls.
        self._open_ids: OrderedDict[str, None] = OrderedDict()
        self._open_ids_by_name: dict[str, OrderedDict[str, None]] = {}

    def read(self, message: OllamaWireMessage, path: str) -> Message:
        # Ollama converts roles to lower case when it decodes a message.
        role = Role(check_one_of(message.role.lower(), ROLES, f"{path}.role"))
        # Images come first: Ollama puts their placeholders before the text of the
        # message.
        images = tuple(read_images(message.images, f"{path}.images"))
        if role is Role.TOOL:
            id = message.tool_call_id
            name = message.tool_name
            if not id:
                open_ids = self._open_ids_by_name.get(name, ()) if name else self._open_ids
                id = next(iter(open_ids), f"call_{name or 'unknown'}")
            self._close(id)
            # Ollama's clients need not send ids, so a result without one may have no
            # call.
            result = ToolResult(
                id, (*images, Text(message.content or "")), answers_call=bool(message.tool_call_id)
            )
            return Message(Role.TOOL, (result,), name or self._names.get(id))
        parts: list[Part] = [*images]
        if role is Role.ASSISTANT and message.thinking:
            parts.append(Reasoning(message.thinking))
        if message.content:
            parts.append(Text(message.content))
        for i, call in enumerate(message.tool_calls or () if role is Role.ASSISTANT else ()):
            id = call.id or f"call_{len(self._names)}"
            function = call.function
            # An id that a client uses again means the later call.
            self._close(id)
            self._names[id] = function.name
            self._open_ids[id] = None
            self._open_ids_by_name.setdefault(function.name, OrderedDict())[id] = None
            arguments = read_json_object(
                function.arguments, f"{path}.tool_calls[{i}].function.arguments"
            )
            parts.append(ToolCall(id, function.name, arguments or "{}"))
        return Message(role, tuple(parts))

    def _close(self, id: str) -> None:
        """Remove a call from the open ones, if it is one of them."""
        if id in self._open_ids:
            del self._open_ids[id], self._open_ids_by_name[self._names[id]][id]


def read_images(images: Sequence[str] | None, param: str) -> Iterator[Image]:
    for i, data in enumerate(images or ()):
        path = f"{param}[{i}]"
        yield Image(check_image(read_base64(data, None, path), path))


def read_tools(tools: Sequence[OllamaTool] | None) -> tuple[FunctionTool, ...]:
    """Parse the declared tools. Raises RequestError with the path of the invalid field."""
    declared: dict[str, FunctionTool] = {}
    for i, tool in enumerate(tools or ()):
        path = f"tools[{i}]"
        name = tool.function.name
        if tool.type != "function":
            raise Unsupported(
                f"'{path}': tools of type {abbreviate(tool.type)} cannot be run here.", param=path
            )
        if not _TOOL_NAME.fullmatch(name):
            raise invalid_value(
                f"{path}.function.name",
                f"expected 1 to 64 of the characters a-z, A-Z, 0-9, '_', '.' and '-', got "
                f"{abbreviate(name)}",
            )
        if name in declared:
            raise RequestError(
                f"'tools' declares {abbreviate(name)} twice.", param="tools", code="invalid_value"
            )
        parameters = read_json_object(tool.function.parameters, f"{path}.function.parameters")
        declared[name] = FunctionTool(name, tool.function.description, parameters)
    return tuple(declared.values())
