"""Servers that break the rules of MCP: their errors, and the limits of what they send."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.serving.media_fetcher import is_public, resolve_addresses
from dragoman.tools.interface import (
    ToolServer,
    ToolServerError,
    ToolServerErrorKind,
    ToolServerRequest,
)
from dragoman.tools.mcp_servers import McpServers
from dragoman.tools.stdio_transport import MAX_LOG_LINES
from dragoman.tools.tool_file import ServerEntry, ToolFile

PROGRAM = Path(__file__).parent / "hostile_server.py"
TIMEOUT = 60.0
SERVER = ToolServerRequest(label="s")


def build_servers(
    kind: str,
    *,
    call_timeout: float = TIMEOUT,
    env: dict[str, str] | None = None,
    now: Callable[[], float] = lambda: 0.0,
) -> McpServers:
    entry = ServerEntry(
        command=sys.executable,
        args=("-I", "-S", str(PROGRAM), kind),
        env=env or {},
        connect_timeout=TIMEOUT,
        call_timeout=call_timeout,
        max_output_bytes=1000,
    )
    file = ToolFile(servers={"s": entry})
    return McpServers(file, resolve=resolve_addresses, is_public=is_public, now=now)


@asynccontextmanager
async def run_servers(servers: McpServers) -> AsyncGenerator[McpServers]:
    try:
        yield servers
    finally:
        await servers.close()


@asynccontextmanager
async def open_server(kind: str) -> AsyncGenerator[ToolServer]:
    async with run_servers(build_servers(kind)) as servers, servers.open(SERVER) as server:
        yield server


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("endless list", ToolServerErrorKind.PROTOCOL),
        ("many tools", ToolServerErrorKind.TOO_LARGE),
        ("large schema", ToolServerErrorKind.PROTOCOL),
        ("large description", ToolServerErrorKind.PROTOCOL),
        ("deep schema", ToolServerErrorKind.PROTOCOL),
        ("bottomless schema", ToolServerErrorKind.PROTOCOL),
        ("invalid name", ToolServerErrorKind.PROTOCOL),
        ("surrogate", ToolServerErrorKind.PROTOCOL),
        ("no list", ToolServerErrorKind.PROTOCOL),
    ],
)
async def test_tool_server_invalid_list_raises(kind: str, error: ToolServerErrorKind) -> None:
    async with open_server(kind) as server:
        with pytest.raises(ToolServerError) as raised:
            await server.list_tools()
        assert raised.value.kind is error


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("long message", ToolServerErrorKind.TOO_LARGE),
        ("large output", ToolServerErrorKind.TOO_LARGE),
        ("wrong ids", ToolServerErrorKind.PROTOCOL),
        ("notifications", ToolServerErrorKind.PROTOCOL),
        ("exit", ToolServerErrorKind.CONNECTION),
        ("no JSON", ToolServerErrorKind.PROTOCOL),
        ("error", ToolServerErrorKind.PROTOCOL),
    ],
)
async def test_tool_server_invalid_result_raises(kind: str, error: ToolServerErrorKind) -> None:
    async with open_server(kind) as server:
        with pytest.raises(ToolServerError) as raised:
            await server.call("look", "{}", timeout=TIMEOUT)
        assert raised.value.kind is error
        # A program that has ended is started again.
        assert [tool.name for tool in await server.list_tools()] == ["look"]


async def test_tool_server_error_keeps_code_and_message() -> None:
    async with open_server("error") as server:
        with pytest.raises(ToolServerError, match="no weather") as raised:
            await server.call("look", "{}", timeout=TIMEOUT)
        assert raised.value.code == -32050


async def test_tool_server_old_version_raises() -> None:
    with pytest.raises(ToolServerError, match="1999-01-01"):
        async with open_server("old version"):
            pass


async def test_tool_server_missing_program_raises() -> None:
    file = ToolFile(servers={"s": ServerEntry(command="/nonexistent/program")})
    servers = McpServers(file, resolve=resolve_addresses, is_public=is_public, now=lambda: 0.0)
    async with run_servers(servers):
        with pytest.raises(ToolServerError) as raised:
            async with servers.open(SERVER):
                pass
        assert raised.value.kind is ToolServerErrorKind.CONNECTION


async def test_tool_server_requests_get_answers() -> None:
    async with open_server("requests") as server:
        result = await server.call("look", "{}", timeout=TIMEOUT)
    ping, sampling = json.loads(result.text)
    assert ping["result"] == {}
    assert sampling["error"]["code"] == -32601


async def test_tool_server_parts_become_text() -> None:
    async with open_server("parts") as server:
        result = await server.call("look", "{}", timeout=TIMEOUT)
    assert result.text == "one\n[image, image/png]\ntwo\n[resource_link file:///b]"
    assert result.structured_content == {"a": 1}


async def test_tool_server_silent_call_times_out_and_is_cancelled() -> None:
    clock = [0.0]
    servers = build_servers("silent", call_timeout=0.01, now=lambda: clock[0])
    async with run_servers(servers), servers.open(SERVER) as server:
        with pytest.raises(ToolServerError) as raised:
            await server.call("look", "{}", timeout=TIMEOUT)
        assert raised.value.kind is ToolServerErrorKind.TIMEOUT
        names: list[str] = []
        while names != ["cancelled_1"]:
            clock[0] += 1000.0
            names = [tool.name for tool in await server.list_tools()]


async def test_tool_server_list_is_kept_until_it_expires() -> None:
    clock = [0.0]
    servers = build_servers("list", now=lambda: clock[0])
    async with run_servers(servers), servers.open(SERVER) as server:
        tools = await server.list_tools()
        assert await server.list_tools() is tools
        clock[0] = 61.0
        assert await server.list_tools() is not tools


async def test_tool_server_environment_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_API_KEY", "s3cret")
    servers = build_servers("environment", env={"TOKEN": "t"})
    async with run_servers(servers), servers.open(SERVER) as server:
        result = await server.call("look", "{}", timeout=TIMEOUT)
    variables = json.loads(result.text)
    assert variables["TOKEN"] == "t"
    assert "DRAGOMAN_API_KEY" not in variables


async def test_tool_server_close_kills_children(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # It can be opened before the child opens its other end.
    file = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    servers = build_servers("child", env={"PIPE": str(pipe)})
    async with run_servers(servers), servers.open(SERVER) as server:
        await server.call("look", "{}", timeout=TIMEOUT)
    async with read_pipe(file) as reader, asyncio.timeout(TIMEOUT):
        # The end of the pipe: no process holds it any more.
        assert await reader.read() == b""


@asynccontextmanager
async def read_pipe(file: Any) -> AsyncGenerator[asyncio.StreamReader]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield reader
    finally:
        transport.close()


@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
async def test_tool_server_close_ends_running_request(tmp_path: Path, method: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    file = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    # Without a writer the pipe would end before the program opens it.
    writer = os.open(pipe, os.O_WRONLY)
    servers = build_servers(f"mute {method}", env={"PIPE": str(pipe)})

    async def use() -> None:
        async with servers.open(SERVER) as server:
            await server.list_tools()
            await server.call("look", "{}", timeout=TIMEOUT)

    async with run_servers(servers), read_pipe(file) as reader, asyncio.timeout(TIMEOUT):
        task = asyncio.create_task(use())
        assert await reader.readexactly(1) == b"x"
        os.close(writer)
        await servers.close()
        with pytest.raises(ToolServerError) as raised:
            await task
        assert raised.value.kind is ToolServerErrorKind.CONNECTION
        # No process is left, and none was started again.
        assert await reader.read() == b""


async def test_tool_server_log_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dragoman.tools")
    async with open_server("log") as server:
        # The program writes more than a pipe holds before it answers.
        await server.call("look", "{}", timeout=TIMEOUT)
    messages = [record.getMessage() for record in caplog.records if "tools" in record.name]
    assert messages[0].endswith(": \ufffd[2Jforged\ufffdentry")
    assert MAX_LOG_LINES < len(messages) < 10 * MAX_LOG_LINES
    assert "too long" in messages[1]


async def test_tool_server_long_message_survives_cancelled_call() -> None:
    arguments = json.dumps({"city": "x" * 9_000_000})
    servers = build_servers("deaf", call_timeout=0.3)
    async with run_servers(servers), servers.open(SERVER) as server:
        for each in ("{}", arguments):
            with pytest.raises(ToolServerError) as raised:
                await server.call("look", each, timeout=TIMEOUT)
            # The cancellation of the first is sent while the second is being written.
            assert raised.value.kind is ToolServerErrorKind.TIMEOUT


async def test_tool_server_deaf_program_is_started_again() -> None:
    arguments = json.dumps({"city": "x" * 9_000_000})
    servers = build_servers("deaf", call_timeout=0.01)
    async with run_servers(servers), servers.open(SERVER) as server:
        # Deaf from the first call, the program reads nothing of the others, however slow
        # this process is.
        for each in ("{}", arguments, arguments):
            with pytest.raises(ToolServerError):
                await server.call("look", each, timeout=TIMEOUT)
        # The first program would never answer.
        assert [tool.name for tool in await server.list_tools()] == ["look"]
