"""Tools that this server calls itself while it answers, such as those of MCP servers.

A dialect plans from the request which tools there are, and `serving.tool_loop` calls
them between the turns of one answer.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

HOSTED_PREFIX = "hosted:"
"""Begins the labels of the servers that run hosted tools, which no client's label does."""
TIMED_OUT = -32001
"""Code of a call that was not answered in time, of the range that JSON-RPC leaves to
servers.
"""
INVALID_ARGUMENTS = -32602
"""JSON-RPC's code for invalid arguments."""
IMAGE_FORMATS = {
    "image/png": "png",
    "image/webp": "webp",
    "image/jpeg": "jpeg",
    "image/gif": "gif",
    "image/svg+xml": "svg",
}
"""The types of generated images, and OpenAI's names of their formats."""


class HostedTarget(Struct, frozen=True):
    """The operator's tool that runs a vendor's hosted tool.

    server: label of the MCP server in the operator's file.
    tool: its tool; None if the server has only one.
    """

    server: str
    tool: str | None = None


class RequestedServer(Struct, frozen=True, kw_only=True):
    """A tool server that a request names.

    label: its name within the request.
    path: the client's field, for errors.
    url: where it is; None means the operator's server of that label.
    authorization, headers: secrets for it, so they are not part of the representation.
    hosted: the operator's tool, if the client named a hosted tool and no server. Its list
        is not shown.
    """

    label: str
    path: str
    url: str | None = None
    authorization: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    hosted: HostedTarget | None = None

    def __repr__(self) -> str:
        return f"RequestedServer(label={self.label!r}, url={self.url!r})"


class ListedTool(Struct, frozen=True, kw_only=True):
    """A tool in a server's list.

    schema: JSON Schema of the arguments, as JSON text.
    annotations: the server's hints, as JSON text.
    is_repeatable: whether the hints allow to make a call again whose outcome is unknown.
    """

    name: str
    schema: str
    description: str | None = None
    annotations: str | None = None
    read_only: bool = False
    is_repeatable: bool = False


class ToolList(Struct, frozen=True, kw_only=True):
    """The tools of a server, or the error with which listing them failed."""

    server: str
    tools: tuple[ListedTool, ...] = ()
    error: str | None = None


class ServerToolName(Struct, frozen=True, kw_only=True):
    """A tool that this server calls.

    qualified: its name in the prompt.
    server: the label of its server.
    name: its name at the server.
    needs_approval: a call must be approved by the client before it is made.
    is_repeatable: as in `ListedTool`.
    hosted: the client's name of the hosted tool that it runs, such as `web_search`; empty
        for others.
    max_calls: maximum calls for one answer; None for no limit of the client's.
    fixed_arguments: the arguments that the client's options set, as a JSON object; the
        model cannot write them.
    """

    qualified: str
    server: str
    name: str
    needs_approval: bool
    is_repeatable: bool = False
    hosted: str = ""
    max_calls: int | None = None
    fixed_arguments: str = "{}"


class ApprovedCall(Struct, frozen=True, kw_only=True):
    """A call of an earlier answer that the client has approved, and that was not made.

    id: id of the call in the prompt.
    approval: id of the request for its approval.
    tool: the name of its tool in the prompt.
    """

    id: str
    approval: str
    tool: str
    arguments: str


class ServerToolPlan(Struct, frozen=True, kw_only=True):
    """What this server may call for one answer.

    servers: the servers, by label.
    tools: the tools that may be called, by their names in the prompt.
    approved: the calls to make before the model continues.
    max_calls: maximum calls; None for no limit of the client's.
    lists: the lists that were requested for this answer.
    """

    servers: dict[str, RequestedServer]
    tools: dict[str, ServerToolName]
    approved: tuple[ApprovedCall, ...] = ()
    max_calls: int | None = None
    lists: tuple[ToolList, ...] = ()


class ToolFailureKind(StrEnum):
    """Who reports that a call has failed."""

    EXECUTION = "execution"
    """The tool itself; the text is for the model."""
    PROTOCOL = "protocol"
    HTTP = "http"
    LIMIT = "limit"
    """This server: it did not make the call, since the answer has had too many."""


class ToolImage(Struct, frozen=True):
    """An image that a tool returned. data: in base64."""

    mime_type: str
    data: str


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """What a call returned that this server made.

    text: the output, or the message of the failure.
    failure: None if the call succeeded.
    code: code of a failure of the protocol or of HTTP.
    approval: id of the approval of the call; None if it needed none.
    structured: the output as JSON, of the hosted tools whose items are built from it.
    images: those that a tool which generates images returned, the last one being the
        result.
    """

    text: str
    failure: ToolFailureKind | None = None
    code: int = 0
    approval: str | None = None
    structured: str | None = None
    images: tuple[ToolImage, ...] = ()


def is_json_object(arguments: str) -> bool:
    """Whether the arguments of a call are a JSON object: others are never sent to a tool
    and need no approval.
    """
    try:
        # Values are decoded too: numbers that no double can hold are found only then.
        msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True
