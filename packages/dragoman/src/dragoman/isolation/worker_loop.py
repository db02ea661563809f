"""The loop of a worker process: it reads frames from stdin, and writes one reply frame
for each to stdout. A reply begins with OK or FAILED.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable

import msgspec
from msgspec import Struct

from ..ipc.frames import read_pipe_frame, write_pipe_frame

OK = b"\0"
FAILED = b"\1"
OUT_OF_MEMORY = 77
"""Exit status of a worker that exceeds its memory in Python. A Rust library aborts
instead (SIGABRT).
"""


class Setup(Struct, frozen=True):
    """The first frame.

    seconds: limit of CPU time of one call.
    memory: limit of the address space that calls may add, in bytes.
    data: passed to `start` of the worker's module.
    """

    seconds: float
    memory: int
    data: bytes


def serve(start: Callable[[bytes], Callable[[bytes], bytes]]) -> None:
    """Serve calls until stdin is closed.

    start: builds the function that handles calls, from `Setup.data`.
    """
    requests = sys.stdin.buffer
    replies = sys.stdout.buffer
    first = read_pipe_frame(requests)
    if first is None:
        return
    setup = msgspec.msgpack.decode(first, type=Setup)
    work = start(setup.data)
    write_pipe_frame(replies, OK)
    # Rust prints to stderr when it aborts; only failures to start belong in the
    # server's log.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # The address space is limited after `start`, whose libraries and data do not count
    # towards the limit of a call. Windows has no such limit, and macOS rejects it;
    # there only the time limit applies.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - not on Windows

        # Aborts are expected here, and a core file would contain clients' data.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm", "rb") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + setup.memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while (call := read_pipe_frame(requests)) is not None:
        _limit_time(setup.seconds)
        try:
            reply = OK + work(call)
        except MemoryError:
            # Without a reply: building one could exceed the limit again.
            os._exit(OUT_OF_MEMORY)
        except Exception:
            reply = FAILED + traceback.format_exc().encode("utf-8", "backslashreplace")
        # Stop the timer first: writing the reply is not part of the call.
        _limit_time(0)
        write_pipe_frame(replies, reply)


def memory_in_use() -> int:
    """Return freed memory to the system, and report resident memory in bytes; 0 if the
    platform does not state it.
    """
    try:
        import ctypes  # noqa: PLC0415 - for Linux only

        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, TypeError, ValueError):
        return 0


def _limit_time(seconds: float) -> None:
    """Limit CPU time by SIGPROF, which also ends native code, and works even after the
    server has exited.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
