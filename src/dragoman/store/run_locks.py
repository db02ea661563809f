"""Detection of live processes: each holds a file lock, which the system releases however the process ends.

So the work of a killed server is recoverable immediately, without heartbeats and their timeouts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


class RunLock:
    """This process's lock. run: a unique name of this opening of the store."""

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
    """Whether a process, including this one, holds the lock. Removes the file of a dead process."""
    path = directory / run
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # The system releases locks when a process dies, however it does, so a lock is never left behind.
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
            # flock locks the open file, not the process: two openings in one process are two runs.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
