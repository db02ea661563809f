"""Small schemas and grammars whose compilation does not end: a real server gets 45 of
them at once.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

HI = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, Any] = {"type": "integer", "multipleOf": 9999991}
INTERSECTION = "start: A\nA: " + " & ".join(f"/(.{{{n}}})*/" for n in (7, 11, 13, 17, 19, 23))
HARMLESS: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
PROC = Path("/proc")
MIB = 1024 * 1024


def is_alive(pid: int) -> bool:
    return (PROC / str(pid)).exists()


class Served:
    """A server in a separate process, and its client."""

    def __init__(self, process: asyncio.subprocess.Process, client: httpx2.AsyncClient) -> None:
        self.process = process
        self._client = client

    async def ask(self, **fields: Any) -> httpx2.Response:
        return await self._client.post(
            "/v1/chat/completions", json={"messages": HI, "max_tokens": 4, **fields}
        )

    def processes(self) -> dict[int, int]:
        """Return the resident bytes of the server and its workers by process id."""
        found: dict[int, int] = {}
        for path in PROC.glob("[0-9]*"):
            try:
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                if str(self.process.pid) in (parent, path.name):
                    found[int(path.name)] = 4096 * int((path / "statm").read_text().split()[1])
            except OSError:
                pass  # It has just ended.
        return found


@asynccontextmanager
async def run_server(*options: str) -> AsyncGenerator[Served]:
    command = (
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        "tiny",
        "--port",
        "0",
        "--store",
        "none",
        *options,
    )
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        where = (await process.stdout.readline()).decode().partition(" on ")[2].split()[0]
        limits = httpx2.Limits(max_connections=200)
        async with httpx2.AsyncClient(
            base_url=where, trust_env=False, timeout=60, limits=limits
        ) as client:
            yield Served(process, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.long
async def test_concurrent_schema_bombs_are_rejected_and_others_served():
    async with run_server("--worker-timeout", "1") as server:
        before = sum(server.processes().values())
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
        bombs = [asyncio.create_task(server.ask(response_format=schema)) for _ in range(45)]
        for answer in await asyncio.gather(*bombs):
            assert answer.status_code == 400
            assert "multipleOf" in answer.json()["error"]["message"]

        grammars = [INTERSECTION, *(f"{INTERSECTION}  // {n}" for n in range(5))]
        bombs = [asyncio.create_task(server.ask(guided_grammar=grammars[n % 6])) for n in range(45)]
        peak = 0
        while not all(bomb.done() for bomb in bombs):
            answer = await server.ask(guided_json=HARMLESS)
            assert answer.status_code == 200
            peak = max(peak, sum(server.processes().values()))
        answers = [await bomb for bomb in bombs]
        assert {answer.status_code for answer in answers} == {400}
        assert all("too much time" in answer.json()["error"]["message"] for answer in answers)
        assert peak - before < 1500 * MIB
        assert sum(server.processes().values()) - before < 300 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.long
async def test_sigterm_does_not_wait_for_grammar_compilation():
    async with run_server("--worker-timeout", "600", "--shutdown-timeout", "1") as server:
        bombs = [
            asyncio.create_task(server.ask(guided_grammar=f"{INTERSECTION}  // {n}"))
            for n in range(20)
        ]
        while len(server.processes()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        workers = server.processes().keys() - {server.process.pid}
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.process.wait(), 60) == 0
        await asyncio.gather(*bombs, return_exceptions=True)
        assert not any(is_alive(pid) for pid in workers)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.long
async def test_client_disconnect_cancels_grammar_compilation():
    async with run_server("--worker-timeout", "600") as server:
        bomb = asyncio.create_task(server.ask(guided_grammar=INTERSECTION))
        while len(server.processes()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        bomb.cancel()
        await asyncio.gather(bomb, return_exceptions=True)
        while len(server.processes()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await server.ask()).status_code == 200
