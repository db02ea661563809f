"""Which processes live: each holds a lock on a file of its own, which the system lets go of however it ends.

So a killed server's work is known to be dead at once, without heartbeats and without waiting for one to be late.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


class RunLock:
    """This process's lock. run: a name that no other opening has had."""

    def __init__(self, directory: Path, run: str) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._path = directory / run
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if not _lock(self._file):
            raise OSError(f"cannot lock {self._path}")

    def release(self) -> None:
        os.close(self._file)
        self._path.unlink(missing_ok=True)


def is_alive(directory: Path, run: str) -> bool:
    """Whether some process, this one included, holds the lock. Clears away what a dead one has left."""
    path = directory / run
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        if not _lock(file):
            return True
    finally:
        os.close(file)
    path.unlink(missing_ok=True)
    return False


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> bool:
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(file: int) -> bool:
        try:
            # A lock of the open file, not of the process: two openings in one process are two runs.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
