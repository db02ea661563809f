"""Detects the features of a chat template, from its syntax tree or by rendering probes."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from jinja2 import nodes

from ..core.errors import RequestError
from .template import TemplateFeatures

# No template writes this text by itself.
_NEEDLE = "Qqneedleqq"


_USER: dict[str, Any] = {"role": "user", "content": "Hello"}


RenderProbe = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""A function that renders messages and tools; raises RequestError."""


def detect_features(
    tree: nodes.Template, variables: Set[str], render: RenderProbe
) -> TemplateFeatures:
    """Detect the features of a template.

    variables: names that the template reads, without those that every template has.
    """
    # Walked once: a walk takes longer than all searches in its result.
    found = list(tree.find_all(nodes.Node))
    fields = {node.attr for node in found if isinstance(node, nodes.Getattr)}
    fields |= {
        str(node.arg.value)
        for node in found
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const)
    }
    constants = {
        node.value
        for node in found
        if isinstance(node, nodes.Const) and isinstance(node.value, str)
    }
    literals = {node.data for node in found if isinstance(node, nodes.TemplateData)}
    splits = [
        node
        for node in found
        if isinstance(node, nodes.Call)
        and isinstance(node.node, nodes.Getattr)
        and node.node.attr == "split"
    ]
    split_arguments = [call.args[0] for call in splits if call.args]
    # Probed: templates concatenate or iterate arguments in too many ways for a search
    #     of the syntax tree.
    needs_text = not _renders_call(render, {"a": 1}) and _renders_call(render, '{"a": 1}')
    fields |= constants  # `message.get("reasoning_content")`, `"reasoning" in message`
    return TemplateFeatures(
        accepts_strings=_shows_needle(render, [{"role": "user", "content": _NEEDLE}]),
        accepts_parts=_shows_needle(
            render, [{"role": "user", "content": [{"type": "text", "text": _NEEDLE}]}]
        ),
        needs_string_arguments=needs_text,
        accepts_null_content=_renders_call(
            render, '{"a": 1}' if needs_text else {"a": 1}, content=None
        ),
        supports_developer="developer" in constants
        and _shows_needle(render, [{"role": "developer", "content": _NEEDLE}, _USER]),
        supports_tools=_shows_needle(render, [_USER], [_build_tool()]),
        variables=frozenset(variables),
        fields=frozenset(fields),
        literals=frozenset(constants | literals),
        split_separators=frozenset(
            str(node.value) for node in split_arguments if isinstance(node, nodes.Const)
        ),
        replaces_text=any(
            isinstance(node, nodes.Filter) and node.name == "replace" for node in found
        )
        or "replace" in fields,
        shows_names=_shows_needle(render, [{**_USER, "name": _NEEDLE}]),
    )


def _shows_needle(
    render: RenderProbe, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> bool:
    """Whether the needle is rendered, and not as part of the Python repr of its
    container.
    """
    try:
        text = render(messages, tools)
    except RequestError:
        return False
    return _NEEDLE in text and not any(quote + "text" + quote + ":" in text for quote in "'\"")


def _renders_call(
    render: RenderProbe, arguments: dict[str, Any] | str, content: str | None = ""
) -> bool:
    """Whether the template renders a tool call with its result, without writing "None"
    anywhere.
    """
    call = {
        "id": "call00000",
        "type": "function",
        "function": {"name": _NEEDLE, "arguments": arguments},
    }
    assistant: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [call]}
    result = {"role": "tool", "content": "1", "tool_call_id": "call00000", "name": _NEEDLE}
    try:
        text = render([_USER, assistant, result], [_build_tool()])
    except RequestError:
        return False
    # A template that prints the null content of a call was not written for it.
    return "None" not in text


def _build_tool() -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "A number."}},
    }
    function = {"name": _NEEDLE, "description": "A tool.", "parameters": parameters}
    return {"type": "function", "function": function}
