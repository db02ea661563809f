"""SIGTERM: plain uvicorn closes its listener at once, aborts requests without an error
event, and exits with -15.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.serving.harness import load_tiny_tokenizer

from dragoman.engines.scripted import Say, Script, ScriptedEngine, ScriptEntry, Wait
from dragoman.launch import Server, ShutdownConfig, build_uvicorn_config
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.settings import Settings

HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 50},
}
FAILED = {
    "/v1/chat/completions": b'data: {"error":',
    "/v1/completions": b'data: {"error":',
    "/v1/responses": b"event: response.failed",
    "/v1/messages": b"event: error",
}
DONE = dict(
    zip(BODIES, (b"[DONE]", b"[DONE]", b"response.completed", b"message_stop"), strict=True)
)


class Stopped:
    """A server whose responses pause until `go_on` is set.

    replaced: the sockets that were passed on to a new process, of each time.
    """

    def __init__(self, shutdown: ShutdownConfig) -> None:
        self.replaced: list[Sequence[socket.socket]] = []
        self.go_on = asyncio.Event()
        script = Script((ScriptEntry((Say("One "), Wait(1.0), Say("two.")), repeat=True),))
        self.engine = ScriptedEngine(script, tokenizer=load_tiny_tokenizer(), sleep=self._wait)
        self.models = Models(
            [ServedModel("m", EventBackend(self.engine, load_tiny_tokenizer()), 4096, 1)]
        )
        self.server = Server(
            build_uvicorn_config(build_asgi_app(self.models), Settings()),
            self.models,
            shutdown_config=shutdown,
            on_replaced=self.replaced.append,
        )
        self.where = ""

    async def _wait(self, _seconds: float) -> None:
        await self.go_on.wait()

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.where, trust_env=False, timeout=60)

    async def stream(self, path: str) -> bytes:
        async with self.client() as client:
            return (
                await client.post(path, json={"model": "m", **BODIES[path], "stream": True})
            ).content

    async def until_running(self, count: int) -> None:
        while self.engine.num_running != count:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0)

    async def tell_to_stop(self) -> None:
        self.server.handle_exit(signal.SIGTERM, None)
        while not self.models.is_closed:  # noqa: ASYNC110 - nor has uvicorn
            await asyncio.sleep(0)


@asynccontextmanager
async def stopped(shutdown: ShutdownConfig) -> AsyncGenerator[tuple[Stopped, asyncio.Task[None]]]:
    one = Stopped(shutdown)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        one.where = f"http://127.0.0.1:{listener.getsockname()[1]}"
        task = asyncio.create_task(one.server.serve(sockets=[listener]))
        while not one.server.started:  # noqa: ASYNC110
            await asyncio.sleep(0)
        yield one, task
        one.go_on.set()
        one.server.should_exit = True
        await task


async def test_draining_finishes_running_requests_and_rejects_new_ones():
    async with stopped(ShutdownConfig(timeout=600.0)) as (server, task):
        running = asyncio.create_task(server.stream("/v1/chat/completions"))
        await server.until_running(1)
        await server.tell_to_stop()
        async with server.client() as client:
            health = await client.get("/health")
            assert (health.status_code, health.headers["connection"]) == (503, "close")
            for path, body in BODIES.items():
                rejected = await client.post(path, json={"model": "m", **body})
                anthropic = path == "/v1/messages"
                assert rejected.status_code == (529 if anthropic else 503)
                assert (rejected.headers["retry-after"], rejected.headers["connection"]) == (
                    "1",
                    "close",
                )
                error = rejected.json()
                assert error.get("type") == ("error" if anthropic else None)
                assert "shutting down" in error["error"]["message"]
        assert server.engine.num_running == 1
        server.go_on.set()
        assert (await running).endswith(b"data: [DONE]\n\n")
        await task
        async with server.client() as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get("/health")


@pytest.mark.parametrize("path", BODIES)
async def test_shutdown_timeout_ends_streams_with_dialect_error(path: str):
    async with stopped(ShutdownConfig(timeout=0.0)) as (server, task):
        running = asyncio.create_task(server.stream(path))
        await server.until_running(1)
        await server.tell_to_stop()
        output = await running
        await task
    assert FAILED[path] in output
    assert DONE[path] not in output


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_replacement_survives_further_failures_but_no_signal(is_stopped: bool):
    async with stopped(ShutdownConfig(timeout=600.0)) as (server, task):
        running = asyncio.create_task(server.stream("/v1/chat/completions"))
        await server.until_running(1)
        server.server.replace()
        while not server.models.is_closed:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)
        # Each failed restart of an engine during the drain asks for it again.
        server.server.replace()
        if is_stopped:
            server.server.handle_exit(signal.SIGTERM, None)
        server.go_on.set()
        await asyncio.gather(running, task, return_exceptions=True)
    assert [len(sockets) for sockets in server.replaced] == ([] if is_stopped else [1])


async def test_shutdown_second_signal_stops_immediately():
    async with stopped(ShutdownConfig(timeout=600.0, grace=600.0)) as (server, task):
        running = asyncio.create_task(server.stream("/v1/chat/completions"))
        await server.until_running(1)
        await server.tell_to_stop()
        server.server.handle_exit(signal.SIGTERM, None)
        await task
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_shutdown_grace_period_keeps_idle_server_reachable():
    async with stopped(ShutdownConfig(grace=600.0)) as (server, task):
        await server.tell_to_stop()
        async with server.client() as client:
            assert (await client.get("/health")).status_code == 503
        assert not task.done()
        server.server.handle_exit(signal.SIGTERM, None)


async def test_draining_still_serves_stored_objects():
    """Only new work is rejected."""
    async with stopped(ShutdownConfig(grace=600.0)) as (server, _):
        await server.tell_to_stop()
        async with server.client() as client:
            assert (await client.get("/v1/models")).status_code == 200
        server.server.handle_exit(signal.SIGTERM, None)


def until_not_ready(url: str) -> None:
    """Poll, since the signal's handler runs later and sets no event."""
    try:
        while True:
            urllib.request.urlopen(url).close()
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
    assert status == 503


def test_shutdown_by_sigterm_exits_with_0(tmp_path: Path):
    script = tmp_path / "replies.yaml"
    script.write_text(
        json.dumps(
            [{"reply": [{"text": "One "}, {"delay": 600}, {"text": "two."}], "repeat": True}]
        )
    )
    arguments = (
        f"scripted:{script}",
        "--port",
        "0",
        "--store",
        "none",
        "--shutdown-timeout",
        "600",
    )
    command = (sys.executable, "-m", "dragoman", "serve", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        where = server.stdout.readline().partition(" on ")[2].split()[0]
        body = json.dumps({"messages": HI, "stream": True}).encode()
        request = urllib.request.Request(
            f"{where}/v1/chat/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.readline().startswith(b"data:")
            server.send_signal(signal.SIGTERM)
            until_not_ready(f"{where}/health")
            server.send_signal(signal.SIGTERM)
            try:
                assert server.wait(60) == 0
            finally:
                server.kill()
