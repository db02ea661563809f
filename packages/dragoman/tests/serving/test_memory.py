"""Memory of a stream that waits for its next token, above the ASGI server, as counted
by Python on any machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.engine.serving import Twin, twin
from tests.serving.harness import scope

from dragoman.http import asgi_extensions
from dragoman.http.asgi_extensions import DISCONNECT_EXTENSION
from tests.virtual_time import run_in_virtual_time

STREAMS = 60
ENDLESS = {"max_tokens": 2000, "ignore_eos": True, "stream": True}
COMPLETION = {"prompt": "Hello", **ENDLESS}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], **ENDLESS}


class Client:
    """One connection of a server that reports disconnects. speaks: set when four events
    have arrived.

    direct: whether it accepts pieces without a coroutine, as Dragoman's HTTP server
        does.
    """

    def __init__(self, body: bytes, direct: bool) -> None:
        self.speaks = asyncio.Event()
        self.can_write = False
        self._body = body
        self._direct = direct
        self._left = 4

    def watch(self, _: Callable[[], object] | None, /) -> None: ...

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Message) -> None:
        self.can_write = True
        self.write(b"")

    @property
    def can_respond(self) -> bool:
        return not self.can_write

    def begin(self, _: int, __: object) -> None:
        self.can_write = True
        self.write(b"")

    def hold(self, body: bytes) -> None:
        self.write(body)

    def flush(self) -> None: ...

    def write(self, _: bytes) -> None:
        self._left -= 1
        if not self._left:
            self.speaks.set()

    async def ask(self, app: ASGIApp, path: str) -> None:
        request_scope = scope(path)
        request_scope["extensions"] = {DISCONNECT_EXTENSION: self.watch} | (
            {asgi_extensions.DIRECT_WRITE_EXTENSION: self} if self._direct else {}
        )
        await app(request_scope, self.receive, self.send)


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Run a minimal stream: a task that waits."""
    del scope
    await receive()
    for _ in range(4):
        await send({"type": "http.response.start"})
    await asyncio.get_running_loop().create_future()


async def measure(
    app: ASGIApp, path: str, ask: dict[str, Any], streams: int, it: Twin, *, direct: bool
) -> tuple[float, int]:
    """Return the bytes per stream and the total number of tasks, while the engine is
    idle.
    """
    clients = [Client(json.dumps(ask).encode(), direct) for _ in range(streams)]
    tasks = len(asyncio.all_tasks())
    gc.collect()
    tracemalloc.start()
    try:
        running = [asyncio.create_task(client.ask(app, path)) for client in clients]
        for client in clients:
            await client.speaks.wait()
        await it.engine.pause("keep")
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
        tasks = len(asyncio.all_tasks()) - tasks
    finally:
        tracemalloc.stop()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await it.engine.resume()
    return taken / streams, tasks


@pytest.mark.parametrize(
    ("path", "ask", "most", "direct"),
    [
        ("/v1/completions", COMPLETION, 7_300, False),
        ("/v1/chat/completions", CHAT, 7_300, True),
        pytest.param("/v1/completions", COMPLETION, 7_300, True, marks=pytest.mark.long),
        pytest.param("/v1/chat/completions", CHAT, 7_300, False, marks=pytest.mark.long),
    ],
)
def test_stream_memory_is_one_task_and_few_kilobytes(
    path: str, ask: dict[str, Any], most: int, direct: bool
) -> None:
    async def compare() -> tuple[float, float, int]:
        async with twin(max_model_len=4096) as it:
            await measure(it.app, path, ask, 8, it, direct=direct)
            least, _ = await measure(bare, path, ask, STREAMS, it, direct=direct)
            return least, *await measure(it.app, path, ask, STREAMS, it, direct=direct)

    # The next step begins when nothing is left to do: tokens that a busy machine has not
    # passed on yet would take memory too.
    least, taken, tasks = run_in_virtual_time(compare())
    assert tasks == STREAMS
    assert taken - least < most, f"{taken - least:.0f} bytes per stream"
