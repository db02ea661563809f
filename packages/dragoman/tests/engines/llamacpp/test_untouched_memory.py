"""Pages that were only cleared take no memory; all others keep their contents."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.engines.llamacpp_child import CHILD_VARIABLES, return_untouched_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

SIZE = 64 << 20
MARK_AT = 5 << 20


def resident(address: int) -> int:
    """Return the resident bytes of the mapping at an address."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    inside = False
    for line in lines:
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            begin, _, end = first.partition("-")
            inside = int(begin, 16) <= address < int(end, 16)
        elif inside and first == "Rss:":
            return int(line.split()[1]) << 10
    raise AssertionError("no such mapping")


def test_cleared_pages_are_released_and_written_pages_are_kept() -> None:
    """In a separate process, because other threads could write to their mappings at any
    time.
    """
    program = f"from {__name__} import check_pages; check_pages()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            **CHILD_VARIABLES,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def check_pages() -> None:
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        anchor = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(anchor)
        ctypes.memset(address, 0, SIZE)
        memory[MARK_AT] = 7
        before = resident(address)
        assert before >= SIZE
        assert return_untouched_memory() >= SIZE - (2 << 20)
        assert resident(address) <= before - SIZE + (4 << 20)
        assert memory[MARK_AT] == 7
        assert memory[:MARK_AT] == bytes(MARK_AT)
        memory[MARK_AT * 2] = 9
        assert (memory[MARK_AT], memory[MARK_AT * 2]) == (7, 9)
        del anchor
