"""Find free ports, run an ASGI application on one in a thread, and wait for processes."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp

POLL_SECONDS = 0.005
MAX_POLLS = 24_000
"""Polls after which a test fails: two minutes."""


def pause() -> None:
    """Wait between two polls: a loop without a pause takes the processor from the
    process that it waits for.
    """
    threading.Event().wait(POLL_SECONDS)


def find_free_port() -> int:
    """Return a free port, for a program that cannot report a port chosen by the system:
    one below those, since the system may give a port of its own to another test before
    the program listens on it.
    """
    while True:
        port = random.randrange(10_000, 32_768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def serve_app(app: ASGIApp) -> Generator[str]:
    """Run the application and yield its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, log_level="error", log_config=None, server_header=False, date_header=False
        )
        server = uvicorn.Server(config)
        running = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        listener.listen(100)  # connections wait until the server runs
        running.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            running.join()
