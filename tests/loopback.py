"""Find free ports, run an ASGI application on one in a thread, and wait for processes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

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
    """Return a free port, for a program that cannot report a port chosen by the system."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


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
