"""Blocking calls that cannot be interrupted, such as the load of a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


async def run_in_daemon_thread(call: Callable[[], T]) -> T:
    """Run a blocking call that cannot be interrupted in a daemon thread, which does not
    delay the process's exit.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def finish(set_result: Callable[[], None]) -> None:
        if not result.done():
            set_result()

    def run() -> None:
        try:
            value = call()
            report = partial(finish, partial(result.set_result, value))
        except BaseException as error:
            report = partial(finish, partial(result.set_exception, error))
        # The loop is closed if the server has stopped in the meantime.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(report)

    # Not anyio's or asyncio's threads: both are joined at exit, and loading a model can
    # take minutes.
    Thread(target=run, name=run_in_daemon_thread.__name__, daemon=True).start()
    return await result
