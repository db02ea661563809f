"""Runs work that takes long in threads, in which owners take turns."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from .fair_limiter import FairLimiter

MAX_THREADS = 32

T = TypeVar("T")


class FairThreads:
    """Threads for work that takes long, such as tokenizing a prompt of a megabyte. Used on
    one event loop.

    One owner has no more of them at a time than the machine has processors. More would
    not help it, and another owner's short work would wait for all of them.

    threads: all threads.
    per_owner: those of one owner.
    """

    def __init__(
        self, threads: int = MAX_THREADS, per_owner: int = min(MAX_THREADS, os.cpu_count() or 1)
    ) -> None:
        self._places = FairLimiter(threads, per_owner)
        # Every place has its thread.
        self._threads = anyio.CapacityLimiter(threads)

    async def run(self, owner: str, work: Callable[[], T]) -> T:
        """Run the work in the owner's turn, and return its result."""
        async with self._places.hold(owner):
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
