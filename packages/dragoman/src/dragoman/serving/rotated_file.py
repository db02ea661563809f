"""A file that is appended to while another program rotates it."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from .private_file import open_private_file

log = logging.getLogger(__name__)


class RotatedFile:
    """A file that is opened again when it was renamed or deleted.

    The path is compared before each write, so that no signal is needed, and several
    processes can write to one file. Only this user can read a new one.
    """

    def __init__(self, path: Path) -> None:
        """Raise OSError if the file cannot be opened for writing."""
        self._path = path
        self._file = os.fdopen(open_private_file(path), "ab", buffering=0)
        # A pipe or a terminal is not rotated.
        self._is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self._has_failed = False

    def write(self, data: bytes) -> None:
        """Append bytes. Raises OSError."""
        if self._is_regular and self._has_moved():
            self._open_again()
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def _has_moved(self) -> bool:
        try:
            found = os.stat(self._path)
        except OSError:
            return True
        return not os.path.samestat(found, os.fstat(self._file.fileno()))

    def _open_again(self) -> None:
        """Open the path; if that fails, the file from before stays in use."""
        try:
            file = os.fdopen(open_private_file(self._path), "ab", buffering=0)
        except OSError as error:
            if not self._has_failed:
                log.error("%s cannot be opened after its rotation: %s", self._path, error)
            self._has_failed = True
            return
        self._has_failed = False
        self._file.close()
        self._file = file
