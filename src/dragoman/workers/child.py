"""The side of the worker process: reads frames from stdin, writes one reply frame for each to stdout.

A frame is its length as four bytes, little-endian, and the bytes. A reply begins with OK or FAILED.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import IO

import msgspec
from msgspec import Struct

OK, FAILED = b"\0", b"\1"
OUT_OF_MEMORY = 77
"""Exit status. A Rust library aborts instead (SIGABRT)."""


class Setup(Struct, frozen=True):
    """The first frame.

    seconds: CPU time of one call.
    memory: bytes of address space beyond what the process has when it is ready.
    data: for `start` of the module that runs in the worker.
    """

    seconds: float
    memory: int
    data: bytes


def serve(start: Callable[[bytes], Callable[[bytes], bytes]]) -> None:
    """Run until stdin is closed. start: makes the function that answers calls out of `Setup.data`."""
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    first = read_frame(requests)
    if first is None:
        return
    setup = msgspec.msgpack.decode(first, type=Setup)
    work = start(setup.data)
    write_frame(replies, OK)
    # Rust prints to stderr when it aborts; only failures to start belong into the server's log.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # The address space is limited after `start`: its libraries and data do not count towards what a call may use.
    # Windows has no such limit and macOS refuses it; there the time limit alone applies.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - not on Windows

        # An abort is an expected end here, and a core file would contain what clients have sent.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm", "rb") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + setup.memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while (call := read_frame(requests)) is not None:
        _limit_time(setup.seconds)
        try:
            reply = OK + work(call)
        except MemoryError:
            # Without a reply: at the limit, building one could fail as well.
            os._exit(OUT_OF_MEMORY)
        except Exception:
            reply = FAILED + traceback.format_exc().encode("utf-8", "backslashreplace")
        # The timer is stopped first: writing the reply is not part of the call.
        _limit_time(0)
        write_frame(replies, reply)


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Read one frame; None at the end of the stream."""
    head = stream.read(4)
    size = int.from_bytes(head, "little")
    body = stream.read(size) if len(head) == 4 else b""
    return body if len(head) == 4 and len(body) == size else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(len(body).to_bytes(4, "little"))
    stream.write(body)
    stream.flush()


def memory_in_use() -> int:
    """Bytes of resident memory after freed memory is returned to the system; 0 where the platform does not report
    it.
    """
    try:
        import ctypes  # noqa: PLC0415 - for Linux only

        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, TypeError, ValueError):
        return 0


def _limit_time(seconds: float) -> None:
    """Limit CPU time by SIGPROF, which also ends native code, and works after the server is gone."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
