"""Cores and memory that this process may use, and the share of memory for KV caches."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from math import ceil
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
"""The process's own cgroup (v2), as mounted in a container."""
_MEMINFO = Path("/proc/meminfo")
MAX_TORCH_KV_BYTES = 4 << 30
"""Largest default size of a torch KV cache in main memory, bytes."""
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23
"""Since Linux 5.14; Python's mmap does not have it."""
_POPULATED_BYTES = 1 << 20
KV_MEMORY_FRACTION = 4
"""A KV cache in main memory takes at most 1 / KV_MEMORY_FRACTION of the memory that is
available at load time.
"""


def count_usable_cores(cgroup: Path = _CGROUP) -> int:
    """Count the cores that this process may use: its affinity, and the CPU quota of its
    container.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if quota.isdecimal() and period.strip().isdecimal():
        cores = min(cores, ceil(int(quota) / int(period)))
    return max(cores, 1)


def populate_memory(address: int, nbytes: int) -> bool:
    """Let the system provide all pages of a range that is allocated but unused; return
    whether it did.

    The content does not change, so it may be in use meanwhile.
    """
    if sys.platform != "linux":
        return False
    page = os.sysconf("SC_PAGE_SIZE")
    begin = -(-address // page) * page
    end = (address + nbytes) // page * page
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    # 64 MB take 7 ms in pages of 2 MB and 29 ms in pages of 4 kB. A system without huge
    # pages refuses, and the pages are small.
    if end > begin:
        madvise(begin, end - begin, _MADV_HUGEPAGE)
    # In pieces: meanwhile other threads cannot map memory, to start a thread for
    # instance.
    return all(
        madvise(start, min(_POPULATED_BYTES, end - start), _MADV_POPULATE_WRITE) == 0
        for start in range(begin, end, _POPULATED_BYTES)
    )


def find_available_memory(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int | None:
    """Find the bytes of memory that are available to this process; None if the system
    does not report it.
    """
    limit, used = (_read(cgroup / name).strip() for name in ("memory.max", "memory.current"))
    left_in_cgroup = int(limit) - int(used) if limit.isdecimal() and used.isdecimal() else None
    entries = dict(line.split(":", 1) for line in _read(meminfo).splitlines() if ":" in line)
    sizes = [
        size
        for size in (left_in_cgroup, _parse_kilobytes(entries, "MemAvailable"))
        if size is not None
    ]
    return max(min(sizes), 0) if sizes else None


def compute_kv_budget(most: int, available: int | None = None) -> int:
    """Compute the bytes for a KV cache in main memory: a share of what is available, at
    most `most`.

    available: bytes; None asks the system.
    """
    memory = find_available_memory() if available is None else available
    return most if memory is None else min(most, memory // KV_MEMORY_FRACTION)


def _parse_kilobytes(entries: Mapping[str, str], name: str) -> int | None:
    text = entries.get(name, "").removesuffix("kB").strip()
    return int(text) * 1024 if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
