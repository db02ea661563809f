"""Log files that only this user can read."""

from __future__ import annotations

import os
from pathlib import Path

# Windows would translate line ends.
_BINARY: int = getattr(os, "O_BINARY", 0)


def open_private_file(path: Path) -> int:
    """Open a file for appending, and return its descriptor. A new file has mode 0600,
    whatever the umask is; an existing one keeps its mode, which its owner has chosen.

    Raises:
        OSError: it cannot be written.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _BINARY, 0o600)
