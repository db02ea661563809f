"""Reads the MCP servers of a Messages request and its hosted tools that the operator's MCP
servers run, and which of their tools may be called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...core.errors import RequestError, Unsupported
from ...core.message import FunctionTool
from ...core.server_tools import (
    HOSTED_PREFIX,
    HostedTarget,
    RequestedServer,
    ServerToolName,
    ServerToolPlan,
    ToolList,
)
from ..field_errors import abbreviate, check_one_of, invalid_value, missing_parameter
from ..server_tools import build_function, join_name
from .hosted_tools import KINDS, find_hosted_name, list_ignored_options
from .wire import AnthropicWireTool, McpServerDefinition

MCP_TOOLSET = "mcp_toolset"


class McpToolset(Struct, frozen=True):
    """The tools of one server that the model may call.

    enabled: whether tools may be called that `tools` does not name.
    tools: whether a tool may be called, by its name.
    hosted: name of the hosted tool that the server's only tool runs; empty for others.
    max_calls: as in `ServerToolName`.
    """

    server: RequestedServer
    enabled: bool
    tools: dict[str, bool]
    hosted: str = ""
    max_calls: int | None = None

    def allows(self, name: str) -> bool:
        return self.tools.get(name, self.enabled)

    def qualify(self, name: str) -> str:
        """Return the name of a tool in the prompt."""
        return self.hosted or join_name(self.server.label, name)


def read_toolsets(
    servers: Sequence[McpServerDefinition], tools: Sequence[AnthropicWireTool]
) -> tuple[McpToolset, ...]:
    """Read the servers, with the toolsets among the tools. Without servers, toolsets are
    left out as other hosted tools are. Raises RequestError.
    """
    if not servers:
        return ()
    toolsets: dict[str, McpToolset] = {}
    for i, server in enumerate(servers):
        path = f"mcp_servers[{i}]"
        check_one_of(server.type, ("url",), f"{path}.type")
        if not server.name:
            raise missing_parameter(f"{path}.name")
        if server.name.startswith(HOSTED_PREFIX):
            raise invalid_value(f"{path}.name", f"it cannot begin with '{HOSTED_PREFIX}'")
        if server.name in toolsets:
            raise invalid_value(
                f"{path}.name", f"names must be unique, {abbreviate(server.name)} occurs twice"
            )
        toolsets[server.name] = _read_server(server, path)
    configured = set[str]()
    restricted = {server.name for server in servers if server.tool_configuration is not None}
    for i, tool in enumerate(tools):
        if tool.type != MCP_TOOLSET:
            continue
        path = f"tools[{i}]"
        name = tool.mcp_server_name
        if not name:
            raise missing_parameter(f"{path}.mcp_server_name")
        if name not in toolsets:
            raise invalid_value(
                f"{path}.mcp_server_name", f"{abbreviate(name)} is not among 'mcp_servers'"
            )
        if name in configured:
            raise invalid_value(
                f"{path}.mcp_server_name", f"there are two toolsets of {abbreviate(name)}"
            )
        configured.add(name)
        if name in restricted:
            # One would have to override the other, and allow what that forbids.
            raise invalid_value(
                path,
                f"the server {abbreviate(name)} has a 'tool_configuration'; state in 'configs' "
                "and 'default_config' which tools may be called, and remove it",
            )
        toolsets[name] = _read_toolset(tool, toolsets[name].server, path)
    return tuple(toolsets.values())


def _read_server(server: McpServerDefinition, path: str) -> McpToolset:
    configuration = server.tool_configuration
    allowed = None if configuration is None else configuration.allowed_tools
    is_enabled = configuration is None or configuration.enabled is not False
    return McpToolset(
        RequestedServer(
            label=server.name,
            path=path,
            url=server.url,
            authorization=server.authorization_token,
        ),
        is_enabled and allowed is None,
        dict.fromkeys(allowed or (), is_enabled),
    )


def _read_toolset(tool: AnthropicWireTool, server: RequestedServer, path: str) -> McpToolset:
    if bytes(tool.tools) not in (b"", b"null"):
        raise Unsupported(
            f"'{path}.tools' is not supported here: servers always list their tools.",
            param=f"{path}.tools",
        )
    default = tool.default_config
    is_enabled = default is None or default.enabled is not False
    configs = tool.configs or {}
    return McpToolset(
        server,
        is_enabled,
        {
            name: is_enabled if config.enabled is None else config.enabled
            for name, config in configs.items()
        },
    )


def read_hosted_tools(
    tools: Sequence[AnthropicWireTool],
    hosted_tools: Mapping[str, HostedTarget],
    warnings: list[str],
) -> tuple[McpToolset, ...]:
    """Read the hosted tools that the operator runs. Raises RequestError."""
    toolsets: dict[str, McpToolset] = {}
    for i, tool in enumerate(tools):
        if not (hosted := find_hosted_name(tool, hosted_tools)):
            continue
        path = f"tools[{i}]"
        check_one_of(tool.name or hosted, (hosted,), f"{path}.name")
        if hosted in toolsets:
            raise _build_name_error(path, hosted)
        warnings.extend(
            f"{path}.{option} is ignored: the server's own tool has no such option"
            for option in list_ignored_options(tool)
        )
        kind = KINDS[hosted]
        server = RequestedServer(label=HOSTED_PREFIX + kind, path=path, hosted=hosted_tools[kind])
        toolsets[hosted] = McpToolset(server, True, {}, hosted, tool.max_uses)
    return tuple(toolsets.values())


def _build_name_error(path: str, name: str) -> RequestError:
    return invalid_value(
        f"{path}.name", f"tool names must be unique, {abbreviate(name)} occurs twice"
    )


def build_plan(
    toolsets: Sequence[McpToolset], lists: Sequence[ToolList], taken: Sequence[str]
) -> tuple[ServerToolPlan, tuple[FunctionTool, ...]]:
    """Return which tools may be called, and these tools for the prompt.

    taken: the names of the client's own tools.

    Raises:
        RequestError: a server has not listed its tools.
    """
    names: dict[str, ServerToolName] = {}
    functions: list[FunctionTool] = []
    by_label = {toolset.server.label: toolset for toolset in toolsets}
    for tool_list in lists:
        toolset = by_label[tool_list.server]
        if tool_list.error is not None:
            path = toolset.server.path
            raise RequestError(
                f"'{path}': the MCP server {abbreviate(tool_list.server)} lists no tools: "
                f"{tool_list.error}",
                param=path,
            )
        for tool in tool_list.tools:
            qualified = toolset.qualify(tool.name)
            if toolset.hosted and qualified in taken:
                raise _build_name_error(toolset.server.path, qualified)
            if not toolset.allows(tool.name) or qualified in names or qualified in taken:
                continue
            functions.append(build_function(tool, qualified))
            names[qualified] = ServerToolName(
                qualified=qualified,
                server=tool_list.server,
                name=tool.name,
                needs_approval=False,
                hosted=toolset.hosted,
                max_calls=toolset.max_calls,
            )
    servers = {toolset.server.label: toolset.server for toolset in toolsets}
    return ServerToolPlan(servers=servers, tools=names), tuple(functions)
