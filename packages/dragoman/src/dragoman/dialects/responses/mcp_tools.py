"""Reads the MCP servers of a request: which of their tools the model may call, and which
calls the client must approve.

Secrets of a declaration (`authorization`, `headers`) are never part of an echo.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
from msgspec import Raw, Struct

from ...core.errors import Unsupported
from ...core.server_tools import HOSTED_PREFIX, ListedTool, RequestedServer, ToolList
from ..field_errors import abbreviate, invalid_value, missing_parameter
from ..json_encoding import encode_string, encode_string_or_null
from .parsed_items import ListedTools
from .wire import ResponsesWireTool, WireItem, minify

MCP = "mcp"
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
"""OpenAI's rule for a server's label."""


class _ToolFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Selects the tools that have one of the names and, if asked for, are read-only."""

    tool_names: list[str] | None = None
    read_only: bool | None = None

    def selects(self, tool: ListedTool) -> bool:
        return (self.tool_names is None or tool.name in self.tool_names) and (
            self.read_only is None or tool.read_only is self.read_only
        )


class _ApprovalFilters(Struct, frozen=True, forbid_unknown_fields=True):
    always: _ToolFilter | None = None
    never: _ToolFilter | None = None


class McpServer(Struct, frozen=True, kw_only=True):
    """A declared server.

    allowed: the tools that the model may call; None is all of them.
    approval: `always`, `never`, or filters; other tools need an approval.
    options: those of a hosted tool.
    """

    server: RequestedServer
    allowed: list[str] | _ToolFilter | None
    approval: str | _ApprovalFilters
    options: dict[str, Raw] = {}

    def allows(self, tool: ListedTool) -> bool:
        match self.allowed:
            case None:
                return True
            case list():
                return tool.name in self.allowed
            case filter:
                return filter.selects(tool)

    def needs_approval(self, tool: ListedTool) -> bool:
        """Whether a call needs an approval: always, unless a filter exempts the tool."""
        approval = self.approval
        if isinstance(approval, str):
            return approval != "never"
        if approval.always is not None and approval.always.selects(tool):
            return True
        return approval.never is None or not approval.never.selects(tool)


def read_mcp_server(tool: ResponsesWireTool, path: str) -> McpServer:
    """Read the declaration of a server. Raises RequestError."""
    label = tool.server_label
    if not label:
        raise missing_parameter(f"{path}.server_label")
    if not _LABEL.fullmatch(label):
        raise invalid_value(
            f"{path}.server_label",
            "expected a letter, then at most 63 of the characters a-z, A-Z, 0-9, '_' and '-'",
        )
    for field, value in (("connector_id", tool.connector_id), ("tunnel_id", tool.tunnel_id)):
        if value is not None:
            raise Unsupported(
                f"'{path}.{field}' is not supported here: use 'server_url', or the 'server_label' "
                "of a server in this server's settings.",
                param=f"{path}.{field}",
            )
    approval = _decode_approval(tool.require_approval, f"{path}.require_approval")
    if isinstance(approval, str) and approval not in ("always", "never"):
        raise invalid_value(
            f"{path}.require_approval", "expected 'always', 'never' or an object of filters"
        )
    return McpServer(
        server=RequestedServer(
            label=label,
            path=path,
            url=tool.server_url,
            authorization=tool.authorization,
            headers=tuple((tool.headers or {}).items()),
        ),
        allowed=_decode_allowed(tool.allowed_tools, f"{path}.allowed_tools"),
        approval="always" if approval is None else approval,
    )


def render_mcp_server(tool: ResponsesWireTool) -> bytes:
    """Render a declaration for the echo, without its secrets."""
    return (
        b'{"type":"mcp","server_label":%s,"server_url":%s,"server_description":%s,'
        b'"allowed_tools":%s,"require_approval":%s,"headers":null}'
    ) % (
        encode_string(tool.server_label or ""), encode_string_or_null(tool.server_url),
        encode_string_or_null(tool.server_description), minify(tool.allowed_tools),
        minify(tool.require_approval) if bytes(tool.require_approval) else b'"always"',
    )  # fmt: skip


class _WireTool(Struct, frozen=True):
    name: str
    input_schema: Raw = Raw()
    description: str | None = None
    annotations: Raw = Raw()


class _Annotations(Struct, frozen=True):
    read_only: bool | None = msgspec.field(name="readOnlyHint", default=None)
    idempotent: bool | None = msgspec.field(name="idempotentHint", default=None)


def read_tool_list(item: WireItem) -> ListedTools | None:
    """Read an `mcp_list_tools` item; None if it is of no server. Raises MsgspecError."""
    # Clients never get the list of a hosted tool's server.
    if not item.server_label or item.server_label.startswith(HOSTED_PREFIX):
        return None
    tool_list = read_listed_tools(item.server_label, item.tools, item.error)
    # The list of a failed attempt is no list: the next request tries again.
    return None if tool_list.error is not None else ListedTools(tool_list.server, tool_list.tools)


def read_listed_tools(label: str, tools: Raw, error: Raw) -> ToolList:
    """Read the fields of an `mcp_list_tools` item. Raises MsgspecError."""
    listed = msgspec.json.decode(tools, type=list[_WireTool]) if bytes(tools) else []
    failure = bytes(error).strip()
    return ToolList(
        server=label,
        tools=tuple(map(_read_tool, listed)),
        error=None if failure in (b"", b"null") else failure.decode(),
    )


def _read_tool(tool: _WireTool) -> ListedTool:
    annotations = bytes(tool.annotations).strip()
    is_object = annotations.startswith(b"{")
    hints = msgspec.json.decode(annotations, type=_Annotations) if is_object else _Annotations()
    return ListedTool(
        name=tool.name,
        schema=bytes(tool.input_schema).decode() or "{}",
        description=tool.description,
        annotations=annotations.decode() if is_object else None,
        read_only=hints.read_only is True,
        is_repeatable=hints.read_only is True or hints.idempotent is True,
    )


def render_tool_list_tools(tools: tuple[ListedTool, ...]) -> bytes:
    return b"[%s]" % b",".join(
        b'{"name":%s,"description":%s,"input_schema":%s,"annotations":%s}'
        % (
            encode_string(tool.name),
            encode_string_or_null(tool.description),
            minify(Raw(tool.schema.encode())),
            b"null" if tool.annotations is None else minify(Raw(tool.annotations.encode())),
        )
        for tool in tools
    )


def _decode_approval(raw: Raw, path: str) -> str | _ApprovalFilters | None:
    with _name_field(path):
        return msgspec.json.decode(bytes(raw) or b"null", type=str | _ApprovalFilters | None)


def _decode_allowed(raw: Raw, path: str) -> list[str] | _ToolFilter | None:
    with _name_field(path):
        return msgspec.json.decode(bytes(raw) or b"null", type=list[str] | _ToolFilter | None)


@contextmanager
def _name_field(path: str) -> Generator[None]:
    try:
        yield
    except msgspec.MsgspecError as error:
        raise invalid_value(path, abbreviate(str(error))) from None
