"""Returns memory that a process has only cleared: llama.cpp clears its whole KV cache at load time, which makes it
resident. Linux only.

A private anonymous page that is all zeros reads as zeros again after it was returned to the system, so the process
notices nothing. The KV cache then takes as much memory as sequences have filled.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_MIN_MAPPING_BYTES = 16 << 20
"""Smaller mappings are heaps and stacks, which other threads write at any time."""
_CHUNK_BYTES = 1 << 20
# Device 00:00, inode 0 and no name mark an anonymous mapping, and `p` a private one.
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0 *$", re.MULTILINE)
_MAPS = Path("/proc/self/maps")


def return_untouched_memory() -> int:
    """Return the zero pages of large mappings. Returns how many bytes; 0 where the system does not support it.

    No other thread may write to a large mapping meanwhile: call it before the first request.
    """
    if not _MAPS.exists() or not hasattr(mmap, "MADV_DONTNEED"):
        return 0
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes, advise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    returned = 0
    for begin, end in _find_mappings(_MAPS.read_text()):
        for address in range(begin, end, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, end - address)
            words: NDArray[np.uint64] = np.frombuffer(ctypes.string_at(address, size), np.uint64)
            if not words.any() and advise(address, size, mmap.MADV_DONTNEED) == 0:
                returned += size
    return returned


def _find_mappings(maps: str) -> Iterator[tuple[int, int]]:
    """Find the large private anonymous mappings: where each begins and ends."""
    for match in _MAPPING.finditer(maps):
        begin, end = int(match[1], 16), int(match[2], 16)
        if end - begin >= _MIN_MAPPING_BYTES:
            yield begin, end
