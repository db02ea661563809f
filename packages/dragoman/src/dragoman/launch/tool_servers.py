"""The tool servers of the operator's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..core.server_tools import HostedTarget
from ..serving.clock import SystemClock
from ..settings import Settings, SettingsError
from ..tools.interface import ToolServers
from ..tools.tool_file import ToolFile, ToolFileError, parse_tool_file

HOSTED_TOOLS = ("web_search", "code_interpreter", "file_search", "image_generation", "shell")


def load_tool_file(path: str, environment: Mapping[str, str]) -> ToolFile:
    """Load the file of tool servers. Raises SettingsError."""
    try:
        return parse_tool_file(Path(path), Path(path).read_bytes(), environment)
    except OSError as error:
        raise SettingsError(f"--tools-file: {path} cannot be read: {error.strerror}") from error
    except ToolFileError as error:
        raise SettingsError(f"--tools-file: {error}") from None


def build_hosted_tools(
    settings: Settings, environment: Mapping[str, str]
) -> dict[str, HostedTarget]:
    """Build the operator's tools that run hosted tools. Raises SettingsError."""
    targets: dict[str, HostedTarget] = {}
    if not settings.hosted_tool:
        return targets
    if settings.tools_file is None:
        raise SettingsError("--hosted-tool needs --tools-file with the MCP server")
    servers = load_tool_file(settings.tools_file, environment).servers
    for entry in settings.hosted_tool:
        kind, _, target = entry.partition("=")
        label, separator, tool = target.removeprefix("mcp:").partition("/")
        if not target.startswith("mcp:") or not label or (separator and not tool):
            raise SettingsError(f"--hosted-tool: {entry!r} is not KIND=mcp:LABEL[/TOOL]")
        if kind not in HOSTED_TOOLS:
            raise SettingsError(
                f"--hosted-tool: {kind!r} is not supported; use one of {', '.join(HOSTED_TOOLS)}"
            )
        if kind in targets:
            raise SettingsError(f"--hosted-tool: {kind!r} is given twice")
        if label not in servers:
            raise SettingsError(
                f"--hosted-tool: {settings.tools_file} has no server {label!r} for {kind!r}"
            )
        targets[kind] = HostedTarget(label, tool or None)
    return targets


def build_tool_servers(settings: Settings, environment: Mapping[str, str]) -> ToolServers | None:
    """Build the tool servers; None if no file is set. Raises SettingsError."""
    if settings.tools_file is None:
        return None
    # Only with a file: the HTTP client takes long to import.
    from ..serving.media_fetcher import is_public, resolve_addresses  # noqa: PLC0415
    from ..tools.mcp_servers import McpServers  # noqa: PLC0415 - as above

    file = load_tool_file(settings.tools_file, environment)
    return McpServers(
        file, resolve=resolve_addresses, is_public=is_public, now=SystemClock().monotonic
    )
