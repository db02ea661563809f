"""Translates Ollama's messages and tools to the core's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...core.errors import RequestError, Unsupported
from ...core.image_info import check_image
from ...core.message import FunctionTool, Image, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from ..body import abbreviate, check_one_of, invalid_value, read_json_object
from ..media import read_base64
from .wire import OllamaTool, OllamaWireCall, OllamaWireMessage

ROLES = ("system", "user", "assistant", "tool")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def read_messages(messages: Sequence[OllamaWireMessage]) -> tuple[Message, ...]:
    """Parse messages. Raises RequestError with the path of the offending field."""
    reader = _MessageReader()
    return tuple(reader.read(message, f"messages[{i}]") for i, message in enumerate(messages))


class _MessageReader:
    """Reads messages in order, and finds the call that a result belongs to.

    Ollama's calls have an id only in newer clients, and its results name the tool. A result without an id answers the
    first open call of its tool; one that does not name its tool answers the first open call.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._open_ids: list[str] = []

    def read(self, message: OllamaWireMessage, path: str) -> Message:
        role = Role(check_one_of(message.role.lower(), ROLES, f"{path}.role"))
        if role is Role.TOOL:
            return self._read_result(message, path)
        parts = list[Part](read_images(message.images, f"{path}.images"))
        if role is Role.ASSISTANT and message.thinking:
            parts.append(Reasoning(message.thinking))
        if message.content:
            parts.append(Text(message.content))
        if role is Role.ASSISTANT:
            parts += [
                self._read_call(call, f"{path}.tool_calls[{i}].function")
                for i, call in enumerate(message.tool_calls or ())
            ]
        return Message(role, tuple(parts))

    def _read_call(self, call: OllamaWireCall, path: str) -> ToolCall:
        id = call.id or f"call_{len(self._names)}"
        self._names[id] = call.function.name
        self._open_ids.append(id)
        return ToolCall(id, call.function.name, read_json_object(call.function.arguments, f"{path}.arguments") or "{}")

    def _read_result(self, message: OllamaWireMessage, path: str) -> Message:
        id = message.tool_call_id or self._find_open_call(message.tool_name)
        if id in self._open_ids:
            self._open_ids.remove(id)
        content = (*read_images(message.images, f"{path}.images"), Text(message.content or ""))
        # Ollama's clients need not send ids, so a result without one may stand alone.
        result = ToolResult(id, content, answers_call=message.tool_call_id is not None)
        return Message(Role.TOOL, (result,), message.tool_name or self._names.get(id))

    def _find_open_call(self, name: str | None) -> str:
        fitting_ids = (id for id in self._open_ids if not name or self._names[id] == name)
        return next(fitting_ids, f"call_{name or 'unknown'}")


def read_images(images: Sequence[str] | None, param: str) -> Iterator[Image]:
    for i, data in enumerate(images or ()):
        path = f"{param}[{i}]"
        yield Image(check_image(read_base64(data, None, path), path))


def read_tools(tools: Sequence[OllamaTool] | None) -> tuple[FunctionTool, ...]:
    """Parse the declared tools. Raises RequestError with the path of the offending field."""
    declared: dict[str, FunctionTool] = {}
    for i, tool in enumerate(tools or ()):
        path, name = f"tools[{i}]", tool.function.name
        if tool.type != "function":
            raise Unsupported(f"'{path}': tools of type {abbreviate(tool.type)} cannot be run here.", param=path)
        if not _TOOL_NAME.fullmatch(name):
            raise invalid_value(
                f"{path}.function.name",
                f"expected 1 to 64 of the characters a-z, A-Z, 0-9, '_', '.' and '-', got {abbreviate(name)}",
            )
        if name in declared:
            raise RequestError(f"'tools' declares {abbreviate(name)} twice.", param="tools", code="invalid_value")
        parameters = read_json_object(tool.function.parameters, f"{path}.function.parameters")
        declared[name] = FunctionTool(name, tool.function.description, parameters)
    return tuple(declared.values())
