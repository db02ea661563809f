"""Detects the features of a chat template, from its syntax tree and by rendering probes."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from jinja2 import nodes
from msgspec import Struct

from ..core.errors import RequestError

_NEEDLE = "Qqneedleqq"
_USER: dict[str, Any] = {"role": "user", "content": "Hello"}

RenderProbe = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""Render messages and tools; raises RequestError."""


class TemplateFeatures(Struct, frozen=True):
    """The features of a chat template.

    accepts_strings, accepts_parts: message contents may be strings, or lists of `{"type": "text", "text": ...}`.
    needs_string_arguments: a call's arguments must be JSON text, not an object: Functionary v3.2 concatenates them.
    accepts_null_content: a message of tool calls only has content None.
    supports_developer: it handles that role.
    supports_tools: it renders tools.
    variables: names that it reads beside messages.
    fields: names of members and keys that it reads anywhere.
    literals: the texts that it writes or compares with.
    split_separators: what it splits strings at.
    replaces_text: it removes parts of strings.
    """

    accepts_strings: bool
    accepts_parts: bool
    needs_string_arguments: bool
    accepts_null_content: bool
    supports_developer: bool
    supports_tools: bool
    variables: frozenset[str]
    fields: frozenset[str]
    literals: frozenset[str]
    split_separators: frozenset[str]
    replaces_text: bool

    @property
    def supports_thinking(self) -> bool:
        return bool(self.variables & {"enable_thinking", "thinking"})

    @property
    def supports_reasoning_effort(self) -> bool:
        return "reasoning_effort" in self.variables

    @property
    def supports_reasoning(self) -> bool:
        """Whether messages may carry reasoning in a field of their own."""
        return bool(self.fields & {"reasoning_content", "reasoning", "thinking"})


def detect_features(tree: nodes.Template, variables: Set[str], render: RenderProbe) -> TemplateFeatures:
    """Detect the features. variables: names that the template reads, without those that every template has."""
    fields = {node.attr for node in tree.find_all(nodes.Getattr)}
    fields |= {str(node.arg.value) for node in tree.find_all(nodes.Getitem) if isinstance(node.arg, nodes.Const)}
    constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    literals = {node.data for node in tree.find_all(nodes.TemplateData)}
    fields |= constants  # `message.get("reasoning_content")`, `"reasoning" in message`
    return TemplateFeatures(
        accepts_strings=_shows_needle(render, [{"role": "user", "content": _NEEDLE}]),
        accepts_parts=_shows_needle(render, [{"role": "user", "content": [{"type": "text", "text": _NEEDLE}]}]),
        needs_string_arguments=not _renders_call(render, {"a": 1}) and _renders_call(render, '{"a": 1}'),
        accepts_null_content=_accepts_null_content(render),
        supports_developer="developer" in constants
        and _shows_needle(render, [{"role": "developer", "content": _NEEDLE}, _USER]),
        supports_tools=_shows_needle(render, [_USER], [_build_tool()]),
        variables=frozenset(variables),
        fields=frozenset(fields),
        literals=frozenset(constants | literals),
        split_separators=frozenset(_find_split_separators(tree)),
        replaces_text=any(node.name == "replace" for node in tree.find_all(nodes.Filter)) or "replace" in fields,
    )


def _find_split_separators(tree: nodes.Template) -> set[str]:
    separators = set[str]()
    for call in tree.find_all(nodes.Call):
        separator = call.args[0] if call.args else None
        if isinstance(call.node, nodes.Getattr) and call.node.attr == "split" and isinstance(separator, nodes.Const):
            separators.add(str(separator.value))
    return separators


def _shows_needle(
    render: RenderProbe, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> bool:
    """Whether the needle is rendered, and not as part of the Python repr of its container."""
    try:
        text = render(messages, tools)
    except RequestError:
        return False
    return _NEEDLE in text and not any(quote + "text" + quote + ":" in text for quote in "'\"")


def _accepts_null_content(render: RenderProbe) -> bool:
    try:
        text = render(_build_call_messages({"a": 1}, None), [_build_tool()])
    except RequestError:
        return False
    return "None" not in text


def _renders_call(render: RenderProbe, arguments: dict[str, Any] | str) -> bool:
    try:
        render(_build_call_messages(arguments, ""), [_build_tool()])
    except RequestError:
        return False
    return True


def _build_call_messages(arguments: dict[str, Any] | str, content: str | None) -> list[dict[str, Any]]:
    """A question, a call, and its result."""
    call = {"id": "call00000", "type": "function", "function": {"name": _NEEDLE, "arguments": arguments}}
    assistant: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [call]}
    return [_USER, assistant, {"role": "tool", "content": "1", "tool_call_id": "call00000", "name": _NEEDLE}]


def _build_tool() -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "description": "A number."}}}
    function = {"name": _NEEDLE, "description": "A tool.", "parameters": parameters}
    return {"type": "function", "function": function}
