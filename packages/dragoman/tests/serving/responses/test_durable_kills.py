"""Background responses with tools of an MCP server, whose server process is killed."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.serving.responses.processes import serving
from tests.tools import counting_server

from dragoman_check.rules.responses import check_stream

TOOL = {"type": "mcp", "server_label": "counting", "require_approval": "never"}
PER_KILL = 4


def build_script(n_jobs: int) -> str:
    """Build a script in which each job looks, sends, looks again and ends."""
    entries: list[dict[str, Any]] = []
    for job in range(n_jobs):
        for phrase, tool in (("begin", "look"), (f"did look {job};", "send")):
            call = {"tool": {"name": f"counting__{tool}", "arguments": {"job": job}}}
            match = {"contains": f"begin {job};" if phrase == "begin" else phrase}
            entries.append({"match": match, "reply": [{"text": "Next. "}, call]})
        entries.append({"match": {"contains": f"did send {job};"}, "reply": "All of it is done."})
    return json.dumps(entries)


async def read_until(client: httpx2.AsyncClient, id: str, n_events: int) -> bytes:
    """Read the first events of a response's stream."""
    received = b""
    async with client.stream("GET", f"/v1/responses/{id}?stream=true") as answer:
        async for piece in answer.aiter_bytes():
            received += piece
            if received.count(b"\n\n") >= n_events:
                break
    return b"".join(event + b"\n\n" for event in received.split(b"\n\n")[:n_events])


def find_last_number(stream: bytes) -> int:
    return json.loads(stream.rpartition(b"data: ")[2])["sequence_number"]


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.long)])
async def test_killed_server_loses_and_repeats_no_call(tmp_path: Path, kills: int) -> None:
    rng = random.Random(kills)
    calls = tmp_path / "calls.txt"
    calls.touch()
    tools = tmp_path / "tools.json"
    command = {"command": sys.executable, "args": ["-S", counting_server.__file__, str(calls)]}
    tools.write_text(json.dumps({"servers": {"counting": command}}))
    script = build_script(kills * PER_KILL)
    options = ("--tools-file", str(tools), "--max-background", "100")
    store = f"sqlite:{tmp_path / 'store.db'}"
    jobs: dict[int, str] = {}
    beginnings: dict[int, bytes] = {}
    for kill in range(kills + 1):
        async with (
            serving(store, tmp_path, *options, script_text=script) as process,
            process.http() as client,
        ):
            async with asyncio.timeout(120):
                for job, beginning in beginnings.items():
                    number = find_last_number(beginning)
                    path = f"/v1/responses/{jobs[job]}?stream=true&starting_after={number}"
                    events = check_stream(beginning + (await client.get(path)).content)
                    check_end(events[-1]["response"])
                beginnings = {}
                if kill == kills:
                    break
                for job in range(kill * PER_KILL, (kill + 1) * PER_KILL):
                    body = {"model": "scripted", "input": f"begin {job};", "tools": [TOOL]}
                    answer = await client.post("/v1/responses", json={**body, "background": True})
                    jobs[job] = answer.json()["id"]
                last = (kill + 1) * PER_KILL - 1
                beginnings[last] = await read_until(client, jobs[last], rng.randint(3, 30))
            process.kill()
    async with (
        serving(store, tmp_path, *options, script_text=script) as process,
        process.http() as client,
    ):
        for job, id in jobs.items():
            stream = await client.get(f"/v1/responses/{id}?stream=true")
            response = check_stream(stream.content)[-1]["response"]
            counts = Counter(calls.read_text().splitlines())
            n_sent = counts[f"send {job};"]
            assert n_sent == 1 or (response["status"] == "failed" and n_sent == 0)
            assert response["status"] == "failed" or counts[f"look {job};"] >= 1
            check_end(response)


def check_end(response: dict[str, Any]) -> None:
    """Check that a response has all calls, or tells which one was interrupted."""
    if response["status"] == "failed":
        assert "called the tool 'send'" in response["error"]["message"]
        return
    assert response["status"] == "completed"
    items = [item for item in response["output"] if item.get("status") != "incomplete"]
    outputs = [item["output"].split()[1] for item in items if item["type"] == "mcp_call"]
    assert outputs == ["look", "send"]
