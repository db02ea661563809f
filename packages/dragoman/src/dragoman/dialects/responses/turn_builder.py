"""Joins parsed items into messages: those that one answer produced become one turn
again.
"""

from __future__ import annotations

from ...core.message import (
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from .item_reader import apply_summary
from .parsed_items import (
    AssistantParts,
    FreeOutput,
    HostedCall,
    ItemCall,
    ItemSummary,
    LoadedTools,
    ParsedItem,
)
from .tool_registry import ResponsesToolRegistry


class TurnBuilder:
    """Groups parsed items into messages.

    tools: the declared tools; those that items load are added.

    Consecutive text messages of the assistant are separate turns.
    """

    def __init__(self, tools: ResponsesToolRegistry) -> None:
        self._tools = tools
        self._messages: list[Message] = []
        self._open_parts: list[Part] = []
        self._names: dict[str, str] = {}

    def finish(self) -> tuple[Message, ...]:
        self._close_turn()
        return tuple(self._messages)

    def add(self, item: ParsedItem, path: str) -> None:
        """Add an item. path: the item's field, for errors. Raises RequestError if it
        loads invalid tools.
        """
        match item:
            case Message():
                self._close_turn()
                self._messages.append(item)
            case AssistantParts(parts):
                # Reasoning, then text, then calls is one answer of a model; a second
                # text belongs to the next answer.
                if parts and self._open_parts and isinstance(self._open_parts[-1], Text | Refusal):
                    self._close_turn()
                self._open_parts += parts
            case Reasoning() if item.text or item.seal:
                self._open_parts.append(item)
            case ItemCall():
                tools = self._tools
                name = (
                    tools.qualify_client_tool(item.kind)
                    if item.kind
                    else tools.qualify(item.name, item.namespace)
                )
                self._names[item.id] = name
                self._open_parts.append(ToolCall(item.id, name, item.arguments, custom=item.custom))
            case HostedCall():
                self._add_hosted_call(item)
            case ToolResult():
                self._add_result(item)
            case FreeOutput(name, namespace, content):
                # Such as the goals of Codex 0.169 (openai-python 3.54: `call_id` is
                # optional with a `name`). Chat templates have no such turn, so it
                # becomes a user message.
                self._close_turn()
                text = Text(f"Output of {self._tools.qualify(name, namespace)}:\n")
                self._messages.append(Message(Role.USER, (text, *content)))
            case LoadedTools(tools, call_id, is_error):
                names = self._tools.load(tools, f"{path}.tools")
                if call_id:
                    content = (Text("Loaded tools: " + (", ".join(names) or "none")),)
                    self._add_result(ToolResult(call_id, content, is_error=is_error))
            case ItemSummary(text):
                self._close_turn()
                self._messages = apply_summary(text, self._messages)
            case _:
                """Updates are applied by the reader of the body."""

    def _add_hosted_call(self, call: HostedCall) -> None:
        self._names[call.id] = call.name
        self._open_parts.append(ToolCall(call.id, call.name, call.arguments))
        if call.result is not None:
            self._add_result(call.result)

    def _add_result(self, result: ToolResult) -> None:
        self._close_turn()
        self._messages.append(Message(Role.TOOL, (result,), self._names.get(result.call_id)))

    def _close_turn(self) -> None:
        if self._open_parts:
            self._messages.append(Message(Role.ASSISTANT, tuple(self._open_parts)))
            self._open_parts = []
