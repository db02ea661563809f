"""Backends of shared limits, which can be opened several times, on a clock that tests
advance.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.tenants.apply_batch import Holder, KeyState, apply_batch
from dragoman.tenants.limits_store import Batch, BatchResult, LimitsStore

NO_REDIS_SERVER = "no Redis or Valkey server is installed (Debian: apt-get install redis-server)"
NO_REDIS_CLIENT = "the Python client of Redis is not installed (the extra `redis`)"


class ManualClock:
    """A clock in seconds that tests advance. It counts microseconds, so that sums are
    exact.
    """

    def __init__(self, microseconds: int = 0) -> None:
        self.microseconds = microseconds

    def __call__(self) -> float:
        return self.microseconds / 1_000_000

    def unix(self) -> int:
        """Return the time in microseconds, as the stores need it."""
        return 1_800_000_000_000_000 + self.microseconds


class MemoryLimits:
    """A store in memory that only calls `apply_batch`."""

    def __init__(
        self, clock: ManualClock, states: dict[str, KeyState], holders: dict[str, Holder]
    ) -> None:
        self._clock = clock
        self._states = states
        self._holders = holders

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def apply(self, batch: Batch) -> BatchResult:
        states = {key: self._states.setdefault(key, KeyState()) for key in batch.list_keys()}
        return apply_batch(batch, self._clock.unix(), states, self._holders)


@dataclass
class SharedStorage:
    """Storage of one backend.

    make: opens another process's store; it shares the counters until `reset` is called.
    """

    make: Callable[[ManualClock], LimitsStore]
    reset: Callable[[], None]
    clock: ManualClock = field(default_factory=ManualClock)


@contextmanager
def redis_server(program: str) -> Generator[str]:
    """Run a Redis server without a file and without a port, and yield its URL."""
    home = Path(tempfile.mkdtemp(prefix="dragoman-redis-"))
    socket = home / "redis.sock"
    command = [
        program,
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home)
    try:
        assert process.stdout is not None
        if not any("eady to accept connections" in line for line in process.stdout):
            raise RuntimeError(f"{program} did not start")
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.communicate()
        shutil.rmtree(home, ignore_errors=True)


def find_redis_server() -> str | None:
    return shutil.which("valkey-server") or shutil.which("redis-server")
