"""The tools file: accepted contents, errors without secrets, and allowed URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.tools.interface import ToolServerRequest
from dragoman.tools.tool_file import ToolFile, ToolFileError, parse_tool_file

PATH = Path("tools.yaml")


def test_tool_file_expands_variables_of_headers() -> None:
    data = b"servers: {a: {url: 'http://h/mcp', headers: {X-Key: 'k ${TOKEN}'}}}"
    server = parse_tool_file(PATH, data, {"TOKEN": "s3cret"}).servers["a"]
    assert server.headers == {"X-Key": "k s3cret"}
    assert "s3cret" not in repr(server)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("servers: {a: {}}", "give either `command` or `url`"),
        ("servers: {a: {command: x, url: 'http://h'}}", "give either"),
        ("servers: {'a b': {command: x}}", "a label is"),
        ("servers: {a: {command: x, headers: {A: s3cret}}}", "`headers` belong to `url`"),
        (
            "servers: {a: {url: 'http://h', args: [s3cret]}}",
            "`max_memory_bytes` belong to `command`",
        ),
        ("servers: {a: {url: 'ftp://h'}}", "http or https"),
        ("servers: {a: {url: 'http://u:s3cret@h'}}", "no user or password"),
        ("servers: {a: {url: 'http://h:x'}}", "not a URL"),
        ("servers: {a: {url: 'http://h', headers: {A: '${B}'}}}", "variable B is not set"),
        ("servers: {a: {url: 'http://h', headers: {A: \"s3cret\\n\"}}}", "valid HTTP header"),
        ("servers: {a: {command: x, call_timeout: 0}}", "call_timeout"),
        ("servers: {a: {command: x, call_timeout: .nan}}", "call_timeout"),
        ("servers: {a: {command: x, max_output_bytes: 0}}", "max_output_bytes"),
        ("servers: {a: {command: x, colour: red}}", "colour"),
        ("servers: {a: {command: x}, a: {command: s3cret}}", "twice"),
        ("allowed_urls: ['https://h*']", "write a slash after the host"),
        ("allowed_urls: ['https://*.example.com/']", "no `*` in the host"),
        ("allowed_urls: ['https://h.example/mcp?tenant=a*']", "not in a query"),
        ("allowed_urls: ['https://h.example/*/mcp']", "only once"),
        ("allowed_urls: ['https://h.example/**']", "only once"),
    ],
)
def test_tool_file_invalid_entry_raises(data: str, reason: str) -> None:
    with pytest.raises(ToolFileError) as caught:
        parse_tool_file(PATH, data.encode(), {})
    assert str(caught.value).startswith("tools.yaml: ")
    assert reason in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://h.example/mcp", True),
        ("https://H.example:443/mcp", True),
        ("https://h.example/mcp/", False),
        ("https://h.example/mcp?a=1", False),
        ("http://h.example/mcp", False),
        ("https://h.example:444/mcp", False),
        ("https://h.example.evil/mcp", False),
        ("https://h.example@evil/mcp", False),
        ("https://h.example\\@evil/mcp", False),
        ("https://open.example/a/b?c=1", True),
        ("https://open.example/a/../b", False),
        ("https://open.example/a/%2e%2e/b", False),
        ("https://open.example/b", False),
        ("https://open.example:x/a/", False),
        ("", False),
    ],
)
def test_allowed_urls_compare_origin_and_path(url: str, is_allowed: bool) -> None:
    content = ToolFile(allowed_urls=("https://h.example/mcp", "https://open.example/a/*"))
    assert content.allows_url(url) is is_allowed


def test_allowed_urls_empty_allow_nothing() -> None:
    assert not parse_tool_file(PATH, b"", {}).allows_url("https://h.example/")


def test_tool_server_request_repr_has_no_secrets() -> None:
    request = ToolServerRequest(
        label="a", authorization="s3cret", headers=(("X-Key", "s3cret"),), owner="team"
    )
    assert "s3cret" not in repr(request)
    assert "s3cret" not in str(request)
