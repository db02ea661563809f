"""Tools, groups of them and tool choice to the core's, and back: which name and namespace a call has on the wire.

A template knows no groups: a tool of one is presented under a joined name, `crm__find`, which is unique in the
request. Hosted tools, which nothing here can run, are left out of the prompt and of the echo.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ...core.errors import RequestError, Unsupported
from ...core.message import CustomTool, FunctionTool, Tool, ToolChoice
from ..body import echo, invalid, json_text, missing, one_of
from ..text import quoted, quoted_or_null
from .text import compact
from .wire import NamedTool, ToolFormat, WireTool, WireToolChoice

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
JOIN = "__"
CALLABLE = ("function", "custom")


class Name(Struct, frozen=True):
    """How a tool of a group is called: to the model, and on the wire."""

    joined: str
    name: str
    namespace: str


class Toolbox:
    """The tools that may be called. echo: they as the response object shows them, a JSON array."""

    def __init__(self, tools: Sequence[WireTool], warnings: list[str]) -> None:
        self._tools: dict[str, Tool] = {}
        self._joined: dict[tuple[str, str], str] = {}
        self._bare: dict[str, list[str]] = {}
        self._warnings = warnings
        # Groups last: a joined name is made after all those that were given.
        groups = [(i, tool) for i, tool in enumerate(tools) if tool.type == "namespace"]
        shown = {i: self._add(tool, f"tools[{i}]") for i, tool in enumerate(tools) if tool.type != "namespace"}
        shown |= {i: self._add_group(tool, f"tools[{i}]") for i, tool in groups}
        self.echo = b"[%s]" % b",".join(shown[i] for i in sorted(shown) if shown[i])

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    @property
    def names(self) -> tuple[Name, ...]:
        return tuple(Name(joined, name, namespace) for (namespace, name), joined in self._joined.items())

    def joined(self, name: str, namespace: str | None) -> str:
        """What the model calls this tool, also if it is declared no more.

        A bare name may be that of a group's tool, if there is only one of it.
        """
        if namespace:
            return self._joined.get((namespace, name), namespace + JOIN + name)
        if name in self._tools:
            return name
        found = self._bare.get(name, ())
        return found[0] if len(found) == 1 else name

    def _add(self, tool: WireTool, at: str) -> bytes:
        """The tool as it is echoed; nothing where it was left out."""
        if self._leaves_out(tool, at):
            return b""
        name = _checked(tool.name, f"{at}.name")
        if name in self._tools:
            raise _twice(name, at)
        self._tools[name] = _read(tool, name, at)
        return _shown(tool, name)

    def _add_group(self, group: WireTool, at: str) -> bytes:
        namespace = _checked(group.name, f"{at}.name")
        if not group.tools:
            raise missing(f"{at}.tools")
        shown: list[bytes] = []
        for i, tool in enumerate(group.tools):
            where = f"{at}.tools[{i}]"
            if self._leaves_out(tool, where):
                continue
            name = _checked(tool.name, f"{where}.name")
            if (namespace, name) in self._joined:
                raise _twice(name, where)
            joined = self._unique(namespace + JOIN + name)
            read = _read(tool, joined, where)
            self._joined[namespace, name] = joined
            self._bare.setdefault(name, []).append(joined)
            self._tools[joined] = read if shown else _introduced(read, group)
            shown.append(_shown(tool, name))
        if not shown:
            return b""
        return b'{"type":"namespace","name":%s,"description":%s,"tools":[%s]}' % (
            quoted(namespace), quoted(group.description or ""), b",".join(shown),
        )  # fmt: skip

    def _unique(self, joined: str) -> str:
        name, count = joined, 1
        while name in self._tools:
            count += 1
            name = f"{joined}_{count}"
        return name

    def _leaves_out(self, tool: WireTool, at: str) -> bool:
        if tool.type not in CALLABLE:
            self._warnings.append(f"{at}: tools of type {echo(tool.type)} cannot be run here; it was left out")
            return True
        if tool.allowed_callers and "direct" not in tool.allowed_callers:
            self._warnings.append(f"{at}: it can only be called by hosted code; it was omitted")
            return True
        return False

    def choice(self, choice: str | WireToolChoice | None) -> tuple[ToolChoice, bytes]:
        """The choice, and how it is echoed."""
        if choice is None:
            return ToolChoice(), b'"auto"'
        if isinstance(choice, str):
            mode = one_of(choice, ("none", "auto", "required"), "tool_choice")
            if mode == "required" and not self._tools:
                raise invalid("tool_choice", "'required' needs at least one tool that can be called in 'tools'")
            return ToolChoice(mode), quoted(mode)
        match choice.type:
            case "function" | "custom":
                tool = NamedTool(choice.type, choice.name, choice.namespace)
                name = self._named(tool, "tool_choice")
                return ToolChoice("required", (name,), named=True), _reference(tool)
            case "allowed_tools":
                return self._allowed(choice)
            case hosted:
                raise Unsupported(
                    f"'tool_choice': tools of type {echo(hosted)} cannot be run here.", param="tool_choice"
                )

    def _allowed(self, choice: WireToolChoice) -> tuple[ToolChoice, bytes]:
        mode = one_of(choice.mode or "auto", ("none", "auto", "required"), "tool_choice.mode")
        names = tuple(dict.fromkeys(self._allowed_names(choice.tools or ())))
        if not names:
            raise invalid("tool_choice.tools", "expected at least one tool that can be called")
        shown = b",".join(_reference(tool) for tool in choice.tools or ())
        return ToolChoice(mode, names), b'{"type":"allowed_tools","mode":"%s","tools":[%s]}' % (mode.encode(), shown)

    def _allowed_names(self, tools: Sequence[NamedTool]) -> Iterator[str]:
        groups: set[str | None] = set()
        for i, tool in enumerate(tools):
            at = f"tool_choice.tools[{i}]"
            if tool.type in CALLABLE:
                yield self._named(tool, at)
            elif tool.type == "namespace":
                groups.add(tool.name)
            else:
                self._warnings.append(f"{at}: tools of type {echo(tool.type)} cannot be run here; it was left out")
        yield from (joined for (namespace, _), joined in self._joined.items() if namespace in groups)

    def _named(self, tool: NamedTool, at: str) -> str:
        if not tool.name:
            raise missing(f"{at}.name")
        kind = CustomTool if tool.type == "custom" else FunctionTool
        name = self.joined(tool.name, tool.namespace)
        if not isinstance(self._tools.get(name), kind):
            raise invalid(f"{at}.name", f"{echo(tool.name)} is not among the declared tools of that type")
        return name


def _read(tool: WireTool, name: str, at: str) -> Tool:
    if tool.type == "custom":
        syntax, definition = _format(tool.format, f"{at}.format")
        return CustomTool(name, tool.description, syntax, definition)
    return FunctionTool(name, tool.description, json_text(tool.parameters, f"{at}.parameters"), tool.strict)


def _twice(name: str, at: str) -> RequestError:
    return invalid(f"{at}.name", f"tool names must be unique, {echo(name)} is there twice")


def _introduced(tool: Tool, group: WireTool) -> Tool:
    """The first tool of a group tells what the group is for: nothing else of the prompt can."""
    if not group.description:
        return tool
    description = f"[{group.name}: {group.description}]\n\n{tool.description or ''}".strip()
    if isinstance(tool, CustomTool):
        return CustomTool(tool.name, description, tool.syntax, tool.definition)
    return FunctionTool(tool.name, description, tool.parameters, tool.strict)


def _checked(name: str | None, param: str) -> str:
    if not name:
        raise missing(param)
    if not _NAME.fullmatch(name):
        raise invalid(param, f"expected 1 to 128 of the characters a-z, A-Z, 0-9, '_', '.' and '-', got {echo(name)}")
    return name


def _format(format: ToolFormat | None, at: str) -> tuple[str | None, str | None]:
    if format is None or one_of(format.type, ("text", "grammar"), f"{at}.type") == "text":
        return None, None
    for field, value in (("syntax", format.syntax), ("definition", format.definition)):
        if value is None:
            raise missing(f"{at}.{field}")
    return one_of(format.syntax or "", ("lark", "regex"), f"{at}.syntax"), format.definition


def _shown(tool: WireTool, name: str) -> bytes:
    """All keys are there, as Open Responses wants them."""
    if tool.type == "custom":
        return b'{"type":"custom","name":%s,"description":%s,"format":%s}' % (
            quoted(name), quoted_or_null(tool.description), _shown_format(tool.format),
        )  # fmt: skip
    strict = b"null" if tool.strict is None else b"true" if tool.strict else b"false"
    return b'{"type":"function","name":%s,"description":%s,"parameters":%s,"strict":%s}' % (
        quoted(name), quoted_or_null(tool.description), compact(tool.parameters), strict,
    )  # fmt: skip


def _shown_format(format: ToolFormat | None) -> bytes:
    if format is None or format.syntax is None or format.definition is None:
        return b'{"type":"text"}'
    return b'{"type":"grammar","syntax":%s,"definition":%s}' % (quoted(format.syntax), quoted(format.definition))


def _reference(tool: NamedTool) -> bytes:
    fields = [b'"type":' + quoted(tool.type)]
    if tool.name is not None:
        fields.append(b'"name":' + quoted(tool.name))
    if tool.namespace is not None:
        fields.append(b'"namespace":' + quoted(tool.namespace))
    return b"{%s}" % b",".join(fields)
