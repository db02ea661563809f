"""The setting `--hosted-tool`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.core.server_tools import HostedTarget
from dragoman.launch.tool_servers import HOSTED_TOOLS, build_hosted_tools
from dragoman.settings import Settings, SettingsError

TOOLS = "servers:\n  searx:\n    command: searx\n  sandbox:\n    command: sandbox\n"


@pytest.fixture
def tools_file(tmp_path: Path) -> str:
    path = tmp_path / "tools.yaml"
    path.write_text(TOOLS)
    return str(path)


def build(tools_file: str | None, *entries: str) -> dict[str, HostedTarget]:
    settings = Settings(model="tiny", tools_file=tools_file, hosted_tool=entries)
    return build_hosted_tools(settings, {})


def test_hosted_tools_have_server_and_tool(tools_file: str) -> None:
    entries = ("web_search=mcp:searx/search/all", "code_interpreter=mcp:sandbox")
    assert build(tools_file, *entries) == {
        "web_search": HostedTarget("searx", "search/all"),
        "code_interpreter": HostedTarget("sandbox"),
    }


@pytest.mark.parametrize("kind", HOSTED_TOOLS)
def test_hosted_tool_of_each_kind_is_accepted(tools_file: str, kind: str) -> None:
    assert build(tools_file, f"{kind}=mcp:searx") == {kind: HostedTarget("searx")}


def test_hosted_tools_are_empty_by_default(tools_file: str) -> None:
    assert build(tools_file) == build(None) == {}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (("web_search",), "'web_search' is not KIND=mcp:LABEL"),
        (("web_search=searx",), "is not KIND=mcp:LABEL"),
        (("web_search=mcp:",), "is not KIND=mcp:LABEL"),
        (("web_search=mcp:/search",), "is not KIND=mcp:LABEL"),
        (("web_search=mcp:searx/",), "is not KIND=mcp:LABEL"),
        (("=mcp:searx",), "'' is not supported"),
        (("computer=mcp:searx",), "'computer' is not supported; use one of web_search, code_"),
        (("web_search=mcp:searx", "web_search=mcp:sandbox"), "'web_search' is given twice"),
        (("web_search=mcp:other",), "has no server 'other' for 'web_search'"),
    ],
)
def test_invalid_hosted_tool_is_rejected(
    tools_file: str, entries: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as raised:
        build(tools_file, *entries)
    assert "--hosted-tool" in str(raised.value)


def test_hosted_tool_without_tools_file_is_rejected() -> None:
    with pytest.raises(SettingsError, match="needs --tools-file"):
        build(None, "web_search=mcp:searx")


def test_hosted_tool_with_missing_tools_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        build(str(tmp_path / "missing.yaml"), "web_search=mcp:searx")
