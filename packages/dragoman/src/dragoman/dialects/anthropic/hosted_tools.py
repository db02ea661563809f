"""The hosted tools of Messages, those that Anthropic runs, which a tool of the operator
can run here: their declarations, the blocks of their results, and the citations of these.

The shapes are those of anthropic-python 2.11 (`anthropic.types.ContentBlock`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ...core.server_tools import (
    INVALID_ARGUMENTS,
    TIMED_OUT,
    HostedTarget,
    ToolFailureKind,
    ToolOutcome,
)
from ..json_encoding import encode_string
from ..search_links import Link, find_links, locate_links
from .wire import AnthropicWireTool

KINDS = {"web_search": "web_search", "code_execution": "code_interpreter"}
"""The names of the hosted tools in Messages, and their kinds for the operator."""
_TYPE = re.compile(r"(web_search|code_execution)_\d{8}")
_TOO_MANY_REQUESTS = 429


def find_hosted_name(tool: AnthropicWireTool, hosted_tools: Mapping[str, HostedTarget]) -> str:
    """Return the name of a hosted tool that the operator runs; empty for other tools."""
    match = _TYPE.fullmatch(tool.type or "")
    # With a schema it is a custom tool, whose calls the client expects.
    if match is None or KINDS[match[1]] not in hosted_tools or bytes(tool.input_schema):
        return ""
    callers = tool.allowed_callers
    return match[1] if not callers or "direct" in callers else ""


def list_ignored_options(tool: AnthropicWireTool) -> list[str]:
    """Return the options of a hosted tool that the operator's tool does not have."""
    options = {
        "allowed_domains": tool.allowed_domains,
        "blocked_domains": tool.blocked_domains,
        "user_location": tool.user_location,
    }
    given = [name for name, value in options.items() if bytes(value) not in (b"", b"null", b"[]")]
    return [*given, "strict"] if tool.strict else given


def render_hosted_result(
    id: str, name: str, outcome: ToolOutcome, seal: Callable[[str], str]
) -> bytes:
    """Render the block of a result.

    id: id of the call on the wire.
    name: name of the tool in Messages.
    seal: encrypts the output of a search.
    """
    is_search = name == "web_search"
    content = _render_search(outcome, seal) if is_search else _render_execution(outcome)
    return b'{"type":"%s_tool_result","tool_use_id":%s,"content":%s}' % (
        name.encode(),
        encode_string(id),
        content,
    )


def map_links(output: str) -> dict[str, Link]:
    """Return the links of a search by URL."""
    return {link.url: link for link in find_links(output)}


def render_citations(text: str, links: Mapping[str, Link]) -> list[bytes]:
    """Render a citation of each link that a text names. links: by URL."""
    urls = dict.fromkeys(url for _, url in locate_links(text))
    return [
        b'{"type":"web_search_result_location","url":%s,"title":%s,"encrypted_index":"",'
        b'"cited_text":%s}'
        % (encode_string(link.url), encode_string(link.title), encode_string(link.excerpt))
        for url in urls
        if (link := links.get(url)) is not None
    ]


def _render_search(outcome: ToolOutcome, seal: Callable[[str], str]) -> bytes:
    """Render the links. The first one carries the whole output, so that a later request,
    which returns it, shows the model what it has read.
    """
    if outcome.failure is not None:
        is_limit = outcome.failure is ToolFailureKind.LIMIT
        code = b"max_uses_exceeded" if is_limit else _find_error_code(outcome)
        return b'{"type":"web_search_tool_result_error","error_code":"%s"}' % code
    results = (
        b'{"type":"web_search_result","url":%s,"title":%s,"encrypted_content":%s,"page_age":null}'
        % (
            encode_string(link.url),
            encode_string(link.title),
            b'""' if i else encode_string(seal(outcome.text)),
        )
        for i, link in enumerate(find_links(outcome.text))
    )
    return b"[%s]" % b",".join(results)


def _render_execution(outcome: ToolOutcome) -> bytes:
    """Render the output. A failure that the tool itself reports is that of the code."""
    text = encode_string(outcome.text)
    result = (
        b'{"type":"code_execution_result","stdout":%s,"stderr":%s,"return_code":%d,"content":[]}'
    )
    match outcome.failure:
        case None:
            return result % (text, b'""', 0)
        case ToolFailureKind.EXECUTION:
            return result % (b'""', text, 1)
        case _ if outcome.code == TIMED_OUT:
            code = b"execution_time_exceeded"
        case _:
            code = _find_error_code(outcome)
    return b'{"type":"code_execution_tool_result_error","error_code":"%s"}' % code


def _find_error_code(outcome: ToolOutcome) -> bytes:
    """Return the code of a failure that all hosted tools can have."""
    if outcome.failure is ToolFailureKind.LIMIT or outcome.code == _TOO_MANY_REQUESTS:
        return b"too_many_requests"
    if outcome.code == INVALID_ARGUMENTS:
        return b"invalid_tool_input"
    return b"unavailable"
