"""Detects the features of a chat template, from its syntax tree and by rendering probes."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from jinja2 import nodes
from msgspec import Struct

from ..core.errors import RequestError

_NEEDLE = "Qqneedleqq"
_USER: dict[str, Any] = {"role": "user", "content": "Hello"}

GENERATION_MARK = "dragoman_generation_mark"
"""The variable whose value is written where the generation prompt begins; nothing where it is not set."""
_GENERATION_PROMPT = "add_generation_prompt"

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
    marks_generation: it writes `GENERATION_MARK` where the generation prompt begins, see `insert_generation_mark`.
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
    marks_generation: bool = False

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
    # Found by trying: templates concatenate or iterate arguments in too many ways to be recognized in the source.
    needs_text = not _renders_call(render, {"a": 1}) and _renders_call(render, '{"a": 1}')
    fields |= constants  # `message.get("reasoning_content")`, `"reasoning" in message`
    return TemplateFeatures(
        accepts_strings=_shows_needle(render, [{"role": "user", "content": _NEEDLE}]),
        accepts_parts=_shows_needle(render, [{"role": "user", "content": [{"type": "text", "text": _NEEDLE}]}]),
        needs_string_arguments=needs_text,
        accepts_null_content=_renders_call(render, '{"a": 1}' if needs_text else {"a": 1}, content=None),
        supports_developer="developer" in constants
        and _shows_needle(render, [{"role": "developer", "content": _NEEDLE}, _USER]),
        supports_tools=_shows_needle(render, [_USER], [_build_tool()]),
        variables=frozenset(variables),
        fields=frozenset(fields),
        literals=frozenset(constants | literals),
        split_separators=frozenset(_find_split_separators(tree)),
        replaces_text=any(node.name == "replace" for node in tree.find_all(nodes.Filter)) or "replace" in fields,
    )


def insert_generation_mark(tree: nodes.Template) -> bool:
    """Insert the mark in front of the block that writes the generation prompt, if it can be found; return whether.

    It can where the template ends with a block that `add_generation_prompt` alone switches on, and reads the variable
    nowhere else: what precedes the mark is then what the template writes without a generation prompt.
    """
    reads = [node for node in tree.find_all(nodes.Name) if node.name in (_GENERATION_PROMPT, GENERATION_MARK)]
    last = tree.body[-1] if tree.body else None
    # Elsewhere the mark could be written in the middle of the conversation.
    if not isinstance(last, nodes.If) or last.elif_ or last.else_ or len(reads) != 1:
        return False
    test = last.test
    while isinstance(test, nodes.And):
        # `{% if add_generation_prompt and ... %}`: the first operand decides whether the block is the generation
        # prompt.
        test = test.left
    if test is not reads[0]:
        return False
    mark = nodes.Output([nodes.Name(GENERATION_MARK, "load")]).set_lineno(last.lineno)
    assert tree.environment is not None
    tree.body.insert(-1, mark.set_environment(tree.environment))
    return True


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


def _renders_call(render: RenderProbe, arguments: dict[str, Any] | str, content: str | None = "") -> bool:
    """Whether a call with its result is rendered, and None nowhere."""
    call = {"id": "call00000", "type": "function", "function": {"name": _NEEDLE, "arguments": arguments}}
    assistant: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [call]}
    result = {"role": "tool", "content": "1", "tool_call_id": "call00000", "name": _NEEDLE}
    try:
        text = render([_USER, assistant, result], [_build_tool()])
    except RequestError:
        return False
    # A template that prints the null content of a call has not been written for it.
    return "None" not in text


def _build_tool() -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "description": "A number."}}}
    function = {"name": _NEEDLE, "description": "A tool.", "parameters": parameters}
    return {"type": "function", "function": function}
