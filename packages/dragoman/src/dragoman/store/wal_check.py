"""Finds out whether SQLite has dropped the end of a write-ahead log (WAL).

SQLite reads a WAL up to the first frame whose checksum is wrong, and drops what is
behind it without an error. After a crash in the middle of a write that is right: the
write was not acknowledged. But a flipped bit, or a file system that lost a block, drops
acknowledged transactions in the same way.

https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from pathlib import Path

from msgspec import Struct

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
"""Its lowest bit says whether checksums are of big-endian words."""
_MASK = 0xFFFFFFFF
_WAIT = 1.0
"""Seconds for which another process may sync a commit."""


class WalContent(Struct, frozen=True):
    """What a WAL holds according to its size and headers, before SQLite reads it.

    salts: identify the generation of the frames.
    committed: number of frames up to the last one that ends a transaction.
    has_partial_frame: the file ends within a frame.
    """

    salts: tuple[int, int]
    committed: int
    has_partial_frame: bool


def read_wal(path: Path) -> WalContent | None:
    """Read the headers of a WAL; None if it is absent or empty.

    Frames of earlier generations, which remain behind the end after a checkpoint, do not
    count.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return None
            magic, _, page_size, _, *salts, first, second = _HEADER.unpack(header)
            frame_size = _FRAME.size + page_size
            n_frames, rest = divmod(size - _HEADER.size, frame_size)
            # A damaged header says nothing about the frames. A valid one with other
            # salts than the frames begins a new generation.
            is_intact = _compute_checksum(header[:24], magic) == (first, second)
            committed = 0
            for number in range(1, n_frames + 1):
                file.seek(_HEADER.size + (number - 1) * frame_size)
                frame = file.read(_FRAME.size)
                if len(frame) < _FRAME.size:
                    break
                _, n_pages, *frame_salts, _, _ = _FRAME.unpack(frame)
                if not is_intact and number == 1:
                    salts = frame_salts
                if n_pages and frame_salts == salts:
                    committed = number
    except OSError:
        return None
    return WalContent((salts[0], salts[1]), committed, bool(rest))


def find_dropped_frames(path: Path, before: WalContent, connection: sqlite3.Connection) -> int:
    """Return the number of committed frames that SQLite has dropped on opening because
    they are damaged.

    before: the content before the connection was opened.
    """
    deadline = time.monotonic() + _WAIT
    while True:
        busy, found, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        now = read_wal(path)
        # Another process has removed the file or begun a new generation meanwhile, so it
        # has read the former one.
        if now is None or now.salts != before.salts:
            return 0
        dropped = before.committed - max(found, 0)
        if not busy and dropped <= 0:
            return 0
        # Another process may be checkpointing, or syncing a commit that `before` has.
        if time.monotonic() >= deadline:
            is_damaged = not busy and _has_damaged_frame(path, max(found, 0), before.committed)
            return dropped if is_damaged else 0
        time.sleep(0.01)


def _has_damaged_frame(path: Path, found: int, committed: int) -> bool:
    """Whether SQLite has dropped transactions that were stored once.

    A writer that was killed before it published its commit leaves whole frames, which
    nobody was told to be stored. The next writer may overwrite only some of them, and
    what is behind does not continue its checksums: at most one transaction. Of several
    whose checksums continue each other, each was published before the next one. The
    last one is left to `SqliteStore`, which compares what was acknowledged.

    found, committed: numbers of the last frames that SQLite uses, and that end a
        transaction according to their headers.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            magic, _, page_size, *_, first, second = _HEADER.unpack(header)
            expected = _compute_checksum(header[:24], magic)
            if expected != (first, second):
                return True
            frame_size = _FRAME.size + page_size
            if found:
                file.seek(_HEADER.size + (found - 1) * frame_size)
                expected = _FRAME.unpack(file.read(_FRAME.size))[4:]
            file.seek(_HEADER.size + found * frame_size)
            n_breaks = n_transactions = 0
            for _ in range(found, committed):
                frame = file.read(frame_size)
                _, n_pages, _, _, *checksum = _FRAME.unpack_from(frame)
                content = frame[:8] + frame[_FRAME.size :]
                if _compute_checksum(content, magic, expected) != tuple(checksum):
                    n_breaks += 1
                    n_transactions = 0
                expected = tuple(checksum)
                n_transactions += n_pages > 0
                if n_breaks and n_transactions > 1:
                    return True
    except (OSError, struct.error):
        pass
    return False


def _compute_checksum(data: bytes, magic: int, before: tuple[int, ...] = (0, 0)) -> tuple[int, int]:
    """Return the checksum of a header or a frame.

    before: the checksum that it continues.
    """
    order = ">" if magic & 1 else "<"
    first, second = before
    if magic & ~1 != _MAGIC:
        return -1, -1
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & _MASK
        second = (second + other + first) & _MASK
    return first, second
