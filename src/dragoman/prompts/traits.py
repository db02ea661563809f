"""What a chat template reads and what it can render, found out by reading its syntax tree and by trying it."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from jinja2 import nodes
from msgspec import Struct

from ..core.errors import RequestError

_NEEDLE = "Qqneedleqq"
_USER: dict[str, Any] = {"role": "user", "content": "Hello"}

Try = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""Render messages and tools; raises RequestError."""


class Traits(Struct, frozen=True):
    """What a template wants.

    strings, parts: message contents may be strings, or lists of `{"type": "text", "text": ...}`. null_content: a
    message of tool calls only has content None. developer: knows that role. tools: shows tools.
    variables: names it reads beside messages. fields: names of members and keys it reads anywhere.
    literals: the pieces of text it writes or compares with. splits: what it cuts strings at.
    replaces: it takes pieces out of strings.
    """

    strings: bool
    parts: bool
    null_content: bool
    developer: bool
    tools: bool
    variables: frozenset[str]
    fields: frozenset[str]
    literals: frozenset[str]
    splits: frozenset[str]
    replaces: bool

    @property
    def enable_thinking(self) -> bool:
        return bool(self.variables & {"enable_thinking", "thinking"})

    @property
    def reasoning_effort(self) -> bool:
        return "reasoning_effort" in self.variables

    @property
    def reasoning(self) -> bool:
        """Messages may carry their reasoning apart from their content."""
        return bool(self.fields & {"reasoning_content", "reasoning", "thinking"})


def find(tree: nodes.Template, variables: Set[str], attempt: Try) -> Traits:
    """variables: names that the template reads, but for those that every template has."""
    fields = {node.attr for node in tree.find_all(nodes.Getattr)}
    fields |= {str(node.arg.value) for node in tree.find_all(nodes.Getitem) if isinstance(node.arg, nodes.Const)}
    constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    written = {node.data for node in tree.find_all(nodes.TemplateData)}
    fields |= constants  # `message.get("reasoning_content")`, `"reasoning" in message`
    return Traits(
        strings=_shows(attempt, [{"role": "user", "content": _NEEDLE}]),
        parts=_shows(attempt, [{"role": "user", "content": [{"type": "text", "text": _NEEDLE}]}]),
        null_content=_takes_null(attempt),
        developer="developer" in constants and _shows(attempt, [{"role": "developer", "content": _NEEDLE}, _USER]),
        tools=_shows(attempt, [_USER], [_tool()]),
        variables=frozenset(variables),
        fields=frozenset(fields),
        literals=frozenset(constants | written),
        splits=frozenset(_splits(tree)),
        replaces=any(node.name == "replace" for node in tree.find_all(nodes.Filter)) or "replace" in fields,
    )


def _splits(tree: nodes.Template) -> set[str]:
    found = set[str]()
    for call in tree.find_all(nodes.Call):
        cut = call.args[0] if call.args else None
        if isinstance(call.node, nodes.Getattr) and call.node.attr == "split" and isinstance(cut, nodes.Const):
            found.add(str(cut.value))
    return found


def _shows(attempt: Try, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> bool:
    """The needle is rendered, and not as Python would print what it is in."""
    try:
        text = attempt(messages, tools)
    except RequestError:
        return False
    return _NEEDLE in text and not any(quote + "text" + quote + ":" in text for quote in "'\"")


def _takes_null(attempt: Try) -> bool:
    call = {"id": "call00000", "type": "function", "function": {"name": _NEEDLE, "arguments": {"a": 1}}}
    assistant: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "1", "tool_call_id": "call00000", "name": _NEEDLE}
    try:
        text = attempt([_USER, assistant, result], [_tool()])
    except RequestError:
        return False
    return "None" not in text


def _tool() -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "description": "A number."}}}
    function = {"name": _NEEDLE, "description": "A tool.", "parameters": parameters}
    return {"type": "function", "function": function}
