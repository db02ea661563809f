"""Joins parsed items into messages: those that one answer produced become one turn
again.
"""

from __future__ import annotations

import msgspec

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
from ...core.server_tools import ApprovedCall
from .item_reader import apply_summary
from .parsed_items import (
    ApprovalRequest,
    ApprovalResponse,
    AssistantParts,
    FreeOutput,
    HostedCall,
    ItemCall,
    ItemSummary,
    ListedTools,
    LoadedTools,
    ParsedItem,
)
from .tool_registry import ResponsesToolRegistry

_UNANSWERED = "The user has not approved this call; it was not made."
_DECLINED = "The user declined this call; it was not made."


def _build_result(id: str, text: str) -> ToolResult:
    return ToolResult(id, (Text(text),), is_error=True)


class TurnBuilder:
    """Groups parsed items into messages.

    tools: the declared tools, and those that items load, which are added to a copy.
    warnings: receives those about loaded tools.

    Consecutive text messages of the assistant are separate turns.
    """

    def __init__(self, tools: ResponsesToolRegistry, warnings: list[str]) -> None:
        self.tools = tools
        self._declared_tools = tools
        self._warnings = warnings
        self._messages: list[Message] = []
        self._open_parts: list[Part] = []
        self._names: dict[str, str] = {}
        self._requests: dict[str, ApprovalRequest] = {}
        self._answered: dict[str, bool] = {}
        self._results: dict[str, ToolResult] = {}
        self.unmatched_approvals: list[str] = []

    def finish(self) -> tuple[Message, ...]:
        self._close_turn()
        for id in self._requests:
            if id in self._results or id not in self._answered:
                # Templates and upstreams reject a call without a result.
                self._add_result(self._results.get(id) or _build_result(id, _UNANSWERED))
        return tuple(self._messages)

    @property
    def has_approvals(self) -> bool:
        """Whether the client has answered requests for an approval."""
        return bool(self._answered or self.unmatched_approvals)

    @property
    def approved_calls(self) -> tuple[ApprovedCall, ...]:
        """The calls that the client has approved and that were not made yet."""
        return tuple(
            ApprovedCall(id=id, approval=id, tool=self._names[id], arguments=request.arguments)
            for id, request in self._requests.items()
            if self._answered.get(id) and id not in self._results
        )

    def add(self, item: ParsedItem, path: str) -> None:
        """Add an item. path: the item's field, for errors. Raises RequestError if it
        loads invalid tools.
        """
        match item:
            case Message():
                self._close_turn()
                self._messages.append(item)
            case AssistantParts() | Reasoning() | ItemCall():
                self._add_output(item)
            case HostedCall():
                self._add_hosted_call(item)
            case ToolResult():
                self._add_result(item)
            case FreeOutput():
                self._add_free_output(item)
            case LoadedTools():
                self._load_tools(item, path)
            case ListedTools() | ApprovalRequest() | ApprovalResponse():
                self._add_mcp_item(item, path)
            case ItemSummary(text):
                self._close_turn()
                self._requests.clear()
                self._messages = apply_summary(text, self._messages)
            case _:
                """Updates are applied by the reader of the body."""

    def _add_output(self, item: AssistantParts | Reasoning | ItemCall) -> None:
        """Add what the model has generated to its open turn."""
        match item:
            case AssistantParts(parts):
                # Reasoning, then text, then calls is one answer of a model; a second
                # text belongs to the next answer.
                if parts and self._open_parts and isinstance(self._open_parts[-1], Text | Refusal):
                    self._close_turn()
                self._open_parts += parts
            case Reasoning():
                if item.text or item.seal:
                    self._open_parts.append(item)
            case ItemCall():
                tools = self.tools
                name = (
                    tools.qualify_client_tool(item.kind)
                    if item.kind
                    else tools.qualify(item.name, item.namespace)
                )
                self._names[item.id] = name
                self._open_parts.append(ToolCall(item.id, name, item.arguments, custom=item.custom))

    def _copy_tools(self) -> ResponsesToolRegistry:
        """Return the tools, to which others can be added."""
        if self.tools is self._declared_tools:
            self.tools = self.tools.copy(self._warnings)
        return self.tools

    def _load_tools(self, loaded: LoadedTools, path: str) -> None:
        names = self._copy_tools().load(loaded.tools, f"{path}.tools")
        if loaded.call_id:
            content = (Text("Loaded tools: " + (", ".join(names) or "none")),)
            self._add_result(ToolResult(loaded.call_id, content, is_error=loaded.is_error))

    def _add_free_output(self, output: FreeOutput) -> None:
        # Such as the goals of Codex 0.169 (openai-python 3.54: `call_id` is
        # optional with a `name`). Chat templates have no such turn, so it
        # becomes a user message.
        self._close_turn()
        text = Text(f"Output of {self.tools.qualify(output.name, output.namespace)}:\n")
        self._messages.append(Message(Role.USER, (text, *output.content)))

    def _add_mcp_item(
        self, item: ListedTools | ApprovalRequest | ApprovalResponse, path: str
    ) -> None:
        match item:
            case ListedTools(server, tools):
                self._copy_tools().load_list(server, tools)
            case ApprovalRequest():
                self._requests[item.id] = item
                name = self.tools.qualify_mcp_tool(item.server, item.name)
                self._names[item.id] = name
                self._open_parts.append(ToolCall(item.id, name, item.arguments))
            case ApprovalResponse():
                self._add_approval(item, path)

    def _add_approval(self, response: ApprovalResponse, path: str) -> None:
        id = response.request
        if id not in self._requests:
            self.unmatched_approvals.append(f"{path}.approval_request_id")
            return
        # The first answer counts: a call is made at most once.
        if self._answered.setdefault(id, response.approves) or id in self._results:
            return
        reason = f" Reason: {response.reason}" if response.reason else ""
        self._results[id] = _build_result(id, _DECLINED + reason)

    def _add_hosted_call(self, call: HostedCall) -> None:
        if call.approval in self._requests and call.result is not None:
            # The prompt has this call already, where its approval was requested.
            id = call.approval or ""
            self._results[id] = msgspec.structs.replace(call.result, call_id=id)
            return
        name = self.tools.qualify_mcp_tool(call.server, call.name) if call.server else call.name
        self._names[call.id] = name
        self._open_parts.append(ToolCall(call.id, name, call.arguments))
        if call.result is not None:
            self._add_result(call.result)

    def _add_result(self, result: ToolResult) -> None:
        self._close_turn()
        self._messages.append(Message(Role.TOOL, (result,), self._names.get(result.call_id)))

    def _close_turn(self) -> None:
        if self._open_parts:
            self._messages.append(Message(Role.ASSISTANT, tuple(self._open_parts)))
            self._open_parts = []
