"""Translates tools, namespaces and tool choices to the core's types, and the names of
calls back to the wire.

Chat templates have no namespaces: a tool in one has a joined name in the prompt,
`crm__find`, which is unique in the request. Tools that OpenAI defines and the client
runs are functions there. Hosted tools, which this server cannot run, are left out of
the prompt and of the echo. Tools of MCP servers, which this server calls itself, are
functions too; they are known only once their servers have listed them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy

import msgspec
from msgspec import Struct

from ...core.errors import RequestError, Unsupported
from ...core.message import CustomTool, FunctionTool, Tool, ToolChoice
from ...core.server_tools import (
    HOSTED_PREFIX,
    HostedTarget,
    ListedTool,
    RequestedServer,
    ServerToolName,
)
from ..field_errors import abbreviate, check_one_of, invalid_value, missing_parameter
from ..json_encoding import encode_string, encode_string_or_null
from ..request_body import read_json_object
from ..server_tools import build_function, join_name
from .client_tool_functions import build_client_function
from .client_tools import CHOICE_TYPES, CLIENT_TOOLS, find_kinds, is_client_tool, render_client_tool
from .hosted_options import (
    fit_options,
    read_hosted_options,
    read_partial_images,
    render_hosted_tool,
)
from .mcp_tools import (
    MCP,
    McpServer,
    read_mcp_server,
    render_mcp_server,
)
from .wire import (
    WEB_SEARCH_TYPES,
    ResponsesNamedTool,
    ResponsesWireTool,
    ResponsesWireToolChoice,
    minify,
)

# OpenAI's limit in Responses; in Chat Completions it is 64.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
NAMESPACE_SEPARATOR = "__"
HOSTED_KINDS = {
    **dict.fromkeys(WEB_SEARCH_TYPES, "web_search"),
    "code_interpreter": "code_interpreter",
    "file_search": "file_search",
    "image_generation": "image_generation",
    "shell": "shell",
}
"""Types of the hosted tools that the operator can run, and their kinds. A shell of this
type can also be the client's.
"""
CALLABLE_TYPES = ("function", "custom")


class ToolName(Struct, frozen=True):
    """The names of a tool: `qualified` in the prompt, `name` and `namespace` on the
    wire.

    kind: type of a tool that OpenAI defines and the client runs; empty for others.
    server_tool: the tool of an MCP server; None for others.
    """

    qualified: str
    name: str
    namespace: str
    kind: str = ""
    server_tool: ServerToolName | None = None


class ResponsesToolRegistry:
    """The callable tools of a request.

    echo: the tools as the response object repeats them, a JSON array.
    """

    def __init__(
        self,
        tools: Sequence[ResponsesWireTool],
        warnings: list[str],
        hosted_tools: Mapping[str, HostedTarget] | None = None,
    ) -> None:
        self._hosted_tools = hosted_tools or {}
        self._tools: dict[str, Tool] = {}
        self._qualified_names: dict[tuple[str, str], str] = {}
        self._names_in_groups: dict[str, list[str]] = {}
        self._client_names: dict[str, str] = {}
        self._mcp_servers: dict[str, McpServer] = {}
        self._mcp_tools: dict[tuple[str, str], ServerToolName] = {}
        self._listed: frozenset[str] = frozenset()
        self._option_warnings: list[str] = []
        self._warnings = warnings
        echoed = self._add_all(tools, "tools")
        self.echo = b"[%s]" % b",".join(echoed[i] for i in sorted(echoed) if echoed[i])

    def begin_request(self) -> ResponsesToolRegistry:
        """Return a registry of the same tools for one request, whose copies share the MCP
        servers that its items declare.
        """
        copied = copy(self)
        copied._mcp_servers = self._mcp_servers.copy()
        return copied

    def copy(self, warnings: list[str]) -> ResponsesToolRegistry:
        """Return a registry of the same tools, to which others can be added. MCP servers
        are shared: the list of one may be loaded before the item that declares it.

        warnings: receives its warnings.
        """
        copied = copy(self)
        copied._tools = self._tools.copy()
        copied._qualified_names = self._qualified_names.copy()
        copied._names_in_groups = {
            name: names.copy() for name, names in self._names_in_groups.items()
        }
        copied._client_names = self._client_names.copy()
        copied._mcp_tools = self._mcp_tools.copy()
        copied._option_warnings = self._option_warnings.copy()
        copied._warnings = warnings
        return copied

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    @property
    def names(self) -> tuple[ToolName, ...]:
        """The names that differ between the prompt and the wire."""
        grouped = (
            ToolName(qualified, name, namespace)
            for (namespace, name), qualified in self._qualified_names.items()
        )
        run_by_client = (
            ToolName(name, name, "", kind) for kind, name in self._client_names.items()
        )
        if not self._mcp_tools:
            return (*grouped, *run_by_client)
        of_servers = (
            ToolName(tool.qualified, tool.name, "", server_tool=tool)
            for tool in self._mcp_tools.values()
        )
        return (*grouped, *run_by_client, *of_servers)

    @property
    def has_mcp_servers(self) -> bool:
        return bool(self._mcp_servers)

    @property
    def mcp_servers(self) -> tuple[RequestedServer, ...]:
        return tuple(declared.server for declared in self._mcp_servers.values())

    @property
    def unlisted_servers(self) -> tuple[RequestedServer, ...]:
        """The MCP servers whose tools are not known yet."""
        return tuple(server for server in self.mcp_servers if server.label not in self._listed)

    @property
    def mcp_tools(self) -> dict[str, ServerToolName]:
        """The tools of MCP servers by their names in the prompt."""
        return {tool.qualified: tool for tool in self._mcp_tools.values()}

    @property
    def option_warnings(self) -> tuple[str, ...]:
        """The warnings about options that the operator's tools do not have, as far as
        these are listed.
        """
        return tuple(self._option_warnings)

    @property
    def partial_images(self) -> int:
        """Maximum drafts of an image that the client wants."""
        declared = self._mcp_servers.get(HOSTED_PREFIX + "image_generation")
        return 0 if declared is None else read_partial_images(declared.options)

    def load_list(self, label: str, tools: Sequence[ListedTool]) -> None:
        """Add the tools of an MCP server that the request allows. The last list of a
        server applies; lists of undeclared servers are ignored.
        """
        declared = self._mcp_servers.get(label)
        if declared is None:
            return
        self._listed |= {label}
        for key in [key for key in self._mcp_tools if key[0] == label]:
            del self._tools[self._mcp_tools.pop(key).qualified]
        for tool in tools:
            if (label, tool.name) in self._mcp_tools or not declared.allows(tool):
                continue
            hosted = "" if declared.server.hosted is None else label.removeprefix(HOSTED_PREFIX)
            qualified = self._make_unique(hosted or join_name(label, tool.name))
            fitted = fit_options(tool, declared.options)
            self._option_warnings += (
                f"{declared.server.path}.{name} is ignored: the server's own tool has no such "
                "option"
                for name in fitted.ignored
            )
            self._tools[qualified] = build_function(fitted.tool, qualified)
            self._mcp_tools[label, tool.name] = ServerToolName(
                qualified=qualified,
                server=label,
                name=tool.name,
                needs_approval=declared.needs_approval(tool),
                is_repeatable=tool.is_repeatable,
                hosted=hosted,
                fixed_arguments=fitted.fixed_arguments,
            )

    def qualify_mcp_tool(self, label: str, name: str) -> str:
        """Return the name in the prompt of an MCP server's tool, even if it is no longer
        listed.
        """
        tool = self._mcp_tools.get((label, name))
        return name if tool is None else tool.qualified

    def load(self, tools: Sequence[ResponsesWireTool], path: str) -> list[str]:
        """Add the tools of an input item, except those that are declared already.
        Return the names of all of them.
        """
        new: list[ResponsesWireTool] = []
        names: list[str] = []
        for tool in tools:
            members = (
                [member for member in tool.tools or () if member.name]
                if tool.type == "namespace"
                else [tool]
            )
            namespace = tool.name or "" if tool.type == "namespace" else ""
            names += [
                f"{namespace}{NAMESPACE_SEPARATOR if namespace else ''}{member.name}"
                for member in members
            ]
            if namespace:
                missing = [
                    each for each in members if (namespace, each.name) not in self._qualified_names
                ]
                new += [msgspec.structs.replace(tool, tools=missing)] if missing else []
            # Clients send the whole history again, and with it every tool that was
            # loaded before.
            elif not self._is_known(tool):
                new.append(tool)
        self._add_all(new, path)
        return names

    def _is_known(self, tool: ResponsesWireTool) -> bool:
        """Whether a tool is declared already: by its name, or as one of a server."""
        hosted = "" if is_client_tool(tool) else HOSTED_KINDS.get(tool.type, "")
        label = tool.server_label if tool.type == MCP else HOSTED_PREFIX + hosted
        return label in self._mcp_servers or (tool.name or tool.type) in self._tools

    def _add_all(self, tools: Sequence[ResponsesWireTool], path: str) -> dict[int, bytes]:
        """Add tools and return their echoes by position; those that are left out have
        none.
        """
        groups = [(i, tool) for i, tool in enumerate(tools) if tool.type == "namespace"]
        run_by_client = [(i, tool) for i, tool in enumerate(tools) if is_client_tool(tool)]
        mcp = [(i, tool) for i, tool in enumerate(tools) if tool.type == MCP]
        hosted = [
            (i, tool)
            for i, tool in enumerate(tools)
            if self._find_hosted(tool.type) and not is_client_tool(tool)
        ]
        special = {i for i, _ in (*groups, *run_by_client, *mcp, *hosted)}
        echoed: dict[int, bytes] = {}
        for i, tool in hosted:
            echoed[i] = self._add_hosted(tool, f"{path}[{i}]")
        for i, tool in mcp:
            echoed[i] = self._add_mcp_server(tool, f"{path}[{i}]")
        for i, tool in enumerate(tools):
            tool_path = f"{path}[{i}]"
            if i in special or self._skip_uncallable(tool, tool_path):
                continue
            name = _check_name(tool.name, f"{tool_path}.name")
            if name in self._tools:
                raise _duplicate_error(name, tool_path)
            self._tools[name] = _read_tool(tool, name, tool_path)
            echoed[i] = _render_tool(tool, name)
        # Joined names and those of OpenAI's tools come last: they must not collide with
        # any declared name.
        for i, group in groups:
            echoed[i] = self._add_group(group, f"{path}[{i}]")
        for i, tool in run_by_client:
            tool_path = f"{path}[{i}]"
            if self._skip_hosted_caller(tool, tool_path):
                continue
            if tool.type in self._client_names:
                raise invalid_value(
                    f"{tool_path}.type", f"there can be one tool of type {abbreviate(tool.type)}"
                )
            name = self._make_unique(CLIENT_TOOLS[tool.type].name)
            self._client_names[tool.type] = name
            self._tools[name] = build_client_function(tool, name, tool_path)
            echoed[i] = render_client_tool(tool, tool_path)
        return echoed

    def _add_mcp_server(self, tool: ResponsesWireTool, path: str) -> bytes:
        if self._skip_hosted_caller(tool, path):
            return b""
        declared = read_mcp_server(tool, path)
        label = declared.server.label
        if label in self._mcp_servers:
            raise invalid_value(
                f"{path}.server_label", f"labels must be unique, {abbreviate(label)} occurs twice"
            )
        self._mcp_servers[label] = declared
        return render_mcp_server(tool)

    def _find_hosted(self, type: str) -> str:
        """Return the kind of a hosted tool that the operator runs; empty for others."""
        kind = HOSTED_KINDS.get(type, "")
        return kind if kind in self._hosted_tools else ""

    def _add_hosted(self, tool: ResponsesWireTool, path: str) -> bytes:
        if self._skip_hosted_caller(tool, path):
            return b""
        kind = self._find_hosted(tool.type)
        label = HOSTED_PREFIX + kind
        if label in self._mcp_servers:
            raise invalid_value(f"{path}.type", f"there can be one tool of type {abbreviate(kind)}")
        options = read_hosted_options(tool, kind, path)
        server = RequestedServer(label=label, path=path, hosted=self._hosted_tools[kind])
        self._mcp_servers[label] = McpServer(
            server=server, allowed=None, approval="never", options=options
        )
        return render_hosted_tool(tool.type, options)

    def qualify(self, name: str, namespace: str | None) -> str:
        """Return the name of a tool in the prompt, even if it is no longer declared.

        A bare name may refer to a tool in a namespace if it is unambiguous.
        """
        if namespace:
            return self._qualified_names.get(
                (namespace, name), namespace + NAMESPACE_SEPARATOR + name
            )
        if name in self._tools:
            return name
        # Models and clients may leave out the namespace, which is harmless unless two
        # namespaces have such a tool.
        candidates = self._names_in_groups.get(name, ())
        return candidates[0] if len(candidates) == 1 else name

    def qualify_client_tool(self, call: str) -> str:
        """Return the name in the prompt of the tool that has this type of call, even if
        it is no longer declared.
        """
        kinds = find_kinds(call)
        hosted = (tool.qualified for tool in self._mcp_tools.values() if tool.hosted in kinds)
        return next(
            (self._client_names[kind] for kind in kinds if kind in self._client_names),
            next(hosted, CLIENT_TOOLS[kinds[0]].name),
        )

    def _add_group(self, group: ResponsesWireTool, path: str) -> bytes:
        namespace = _check_name(group.name, f"{path}.name")
        if not group.tools:
            raise missing_parameter(f"{path}.tools")
        echoed: list[bytes] = []
        for i, tool in enumerate(group.tools):
            tool_path = f"{path}.tools[{i}]"
            if self._skip_uncallable(tool, tool_path):
                continue
            name = _check_name(tool.name, f"{tool_path}.name")
            if (namespace, name) in self._qualified_names:
                raise _duplicate_error(name, tool_path)
            qualified = self._make_unique(namespace + NAMESPACE_SEPARATOR + name)
            parsed = _read_tool(tool, qualified, tool_path)
            self._qualified_names[namespace, name] = qualified
            self._names_in_groups.setdefault(name, []).append(qualified)
            # The prompt has no place for a group's description, so it is put before
            # that of the group's first tool.
            if group.description and not echoed:
                description = (
                    f"[{group.name}: {group.description}]\n\n{parsed.description or ''}".strip()
                )
                parsed = msgspec.structs.replace(parsed, description=description)
            self._tools[qualified] = parsed
            echoed.append(_render_tool(tool, name))
        if not echoed:
            return b""
        return b'{"type":"namespace","name":%s,"description":%s,"tools":[%s]}' % (
            encode_string(namespace), encode_string(group.description or ""), b",".join(echoed),
        )  # fmt: skip

    def _make_unique(self, qualified: str) -> str:
        name = qualified
        count = 1
        while name in self._tools:
            count += 1
            name = f"{qualified}_{count}"
        return name

    def _skip_uncallable(self, tool: ResponsesWireTool, path: str) -> bool:
        if tool.type not in CALLABLE_TYPES:
            self._warnings.append(
                f"{path}: tools of type {abbreviate(tool.type)} cannot be run here; it was left out"
            )
            return True
        return self._skip_hosted_caller(tool, path)

    def _skip_hosted_caller(self, tool: ResponsesWireTool, path: str) -> bool:
        if tool.allowed_callers and "direct" not in tool.allowed_callers:
            self._warnings.append(f"{path}: it can only be called by hosted code; it was omitted")
            return True
        return False

    def read_choice(self, choice: str | ResponsesWireToolChoice | None) -> tuple[ToolChoice, bytes]:
        """Return the tool choice and its echo."""
        if choice is None:
            return ToolChoice(), b'"auto"'
        if isinstance(choice, str):
            mode = check_one_of(choice, ("none", "auto", "required"), "tool_choice")
            if mode == "required" and not self._tools and not self.unlisted_servers:
                raise invalid_value(
                    "tool_choice",
                    "'required' needs at least one tool that can be called in 'tools'",
                )
            return ToolChoice(mode), encode_string(mode)
        match choice.type:
            case "function" | "custom":
                tool = ResponsesNamedTool(choice.type, choice.name, choice.namespace)
                name = self._resolve_reference(tool, "tool_choice")
                return ToolChoice("required", (name,), is_named=True), _render_reference(tool)
            case "mcp":
                names = self._resolve_mcp_reference(choice.server_label, choice.name, "tool_choice")
                name = b"" if choice.name is None else b',"name":' + encode_string(choice.name)
                echo = b'{"type":"mcp","server_label":%s%s}' % (
                    encode_string(choice.server_label or ""),
                    name,
                )
                is_named = len(names) == 1
                return ToolChoice("required" if names else "auto", names, is_named=is_named), echo
            case "allowed_tools":
                mode = check_one_of(
                    choice.mode or "auto", ("none", "auto", "required"), "tool_choice.mode"
                )
                names = self._read_allowed_names(choice.tools or ())
                if not names and not self.unlisted_servers:
                    raise invalid_value(
                        "tool_choice.tools", "expected at least one tool that can be called"
                    )
                echoed = b",".join(map(_render_reference, choice.tools or ()))
                echo = b'{"type":"allowed_tools","mode":"%s","tools":[%s]}' % (
                    mode.encode(),
                    echoed,
                )
                return ToolChoice(mode, names), echo
            case kind:
                return self._choose_type(kind), b'{"type":%s}' % encode_string(kind)

    def _choose_type(self, type: str) -> ToolChoice:
        """Return the choice of a tool that OpenAI defines."""
        if (name := self._client_names.get(CHOICE_TYPES.get(type, type))) is not None:
            return ToolChoice("required", (name,), is_named=True)
        label = HOSTED_PREFIX + self._find_hosted(type)
        if label not in self._mcp_servers:
            raise Unsupported(
                f"'tool_choice': tools of type {abbreviate(type)} cannot be run here.",
                param="tool_choice",
            )
        names = self._resolve_mcp_reference(label, None, "tool_choice")
        return ToolChoice("required" if names else "auto", names, is_named=bool(names))

    def _read_allowed_names(self, tools: Sequence[ResponsesNamedTool]) -> tuple[str, ...]:
        names: list[str] = []
        groups: set[str | None] = set()
        for i, tool in enumerate(tools):
            path = f"tool_choice.tools[{i}]"
            if tool.type in CALLABLE_TYPES:
                names.append(self._resolve_reference(tool, path))
            elif tool.type == "namespace":
                groups.add(tool.name)
            elif tool.type == MCP and tool.server_label in self._mcp_servers:
                names += self._resolve_mcp_reference(tool.server_label, tool.name, path)
            elif (label := HOSTED_PREFIX + self._find_hosted(tool.type)) in self._mcp_servers:
                names += self._resolve_mcp_reference(label, None, path)
            elif (
                name := self._client_names.get(CHOICE_TYPES.get(tool.type, tool.type))
            ) is not None:
                names.append(name)
            else:
                self._warnings.append(
                    f"{path}: tools of type {abbreviate(tool.type)} cannot be run here; it was "
                    f"left out"
                )
        names += (
            qualified
            for (namespace, _), qualified in self._qualified_names.items()
            if namespace in groups
        )
        return tuple(dict.fromkeys(names))

    def _resolve_mcp_reference(
        self, label: str | None, name: str | None, path: str
    ) -> tuple[str, ...]:
        """Return the names in the prompt of one or all tools of an MCP server; none as
        long as the server has not listed them.
        """
        if not label:
            raise missing_parameter(f"{path}.server_label")
        if label not in self._mcp_servers:
            raise invalid_value(
                f"{path}.server_label",
                f"{abbreviate(label)} is not among the declared tools of type 'mcp'",
            )
        if label not in self._listed:
            return ()
        names = tuple(
            tool.qualified
            for tool in self._mcp_tools.values()
            if tool.server == label and name in (None, tool.name)
        )
        if not names:
            tools = "any tool" if name is None else abbreviate(name)
            raise invalid_value(
                f"{path}.name", f"the server {abbreviate(label)} does not list {tools}"
            )
        return names

    def _resolve_reference(self, tool: ResponsesNamedTool, path: str) -> str:
        if not tool.name:
            raise missing_parameter(f"{path}.name")
        kind = CustomTool if tool.type == "custom" else FunctionTool
        name = self.qualify(tool.name, tool.namespace)
        if not isinstance(self._tools.get(name), kind):
            raise invalid_value(
                f"{path}.name",
                f"{abbreviate(tool.name)} is not among the declared tools of that type",
            )
        return name


def _read_tool(tool: ResponsesWireTool, name: str, path: str) -> Tool:
    if tool.type == "custom":
        format = tool.format
        if (
            format is None
            or check_one_of(format.type, ("text", "grammar"), f"{path}.format.type") == "text"
        ):
            return CustomTool(name, tool.description, None, None)
        for field, value in (("syntax", format.syntax), ("definition", format.definition)):
            if value is None:
                raise missing_parameter(f"{path}.format.{field}")
        syntax = check_one_of(format.syntax or "", ("lark", "regex"), f"{path}.format.syntax")
        return CustomTool(name, tool.description, syntax, format.definition)
    return FunctionTool(
        name, tool.description, read_json_object(tool.parameters, f"{path}.parameters"), tool.strict
    )


def _duplicate_error(name: str, path: str) -> RequestError:
    return invalid_value(
        f"{path}.name", f"tool names must be unique, {abbreviate(name)} occurs twice"
    )


def _check_name(name: str | None, param: str) -> str:
    if not name:
        raise missing_parameter(param)
    if not _NAME.fullmatch(name):
        raise invalid_value(
            param,
            f"expected 1 to 128 of the characters a-z, A-Z, 0-9, '_', '.' and '-', got "
            f"{abbreviate(name)}",
        )
    return name


def _render_tool(tool: ResponsesWireTool, name: str) -> bytes:
    """Render a tool for the echo, with all keys, as Open Responses requires."""
    if tool.type == "custom":
        format = tool.format
        rendered_format = b'{"type":"text"}'
        if format is not None and format.syntax is not None and format.definition is not None:
            rendered_format = b'{"type":"grammar","syntax":%s,"definition":%s}' % (
                encode_string(format.syntax), encode_string(format.definition),
            )  # fmt: skip
        return b'{"type":"custom","name":%s,"description":%s,"format":%s}' % (
            encode_string(name), encode_string_or_null(tool.description), rendered_format,
        )  # fmt: skip
    strict = b"null" if tool.strict is None else b"true" if tool.strict else b"false"
    return b'{"type":"function","name":%s,"description":%s,"parameters":%s,"strict":%s}' % (
        encode_string(name), encode_string_or_null(tool.description), minify(tool.parameters),
        strict,
    )  # fmt: skip


def _render_reference(tool: ResponsesNamedTool) -> bytes:
    fields = [b'"type":' + encode_string(tool.type)]
    if tool.server_label is not None:
        fields.append(b'"server_label":' + encode_string(tool.server_label))
    if tool.name is not None:
        fields.append(b'"name":' + encode_string(tool.name))
    if tool.namespace is not None:
        fields.append(b'"namespace":' + encode_string(tool.namespace))
    return b"{%s}" % b",".join(fields)
