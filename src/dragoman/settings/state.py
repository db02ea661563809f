"""The state that a server persists besides its store: the state directory, and the secret key in it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

KEY_BYTES = 32


def state_directory(environment: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The platform's directory for persistent state; it need not exist."""
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "dragoman"
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dragoman"
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dragoman"


def load_or_create_key(file: Path) -> bytes:
    """Load the key from this file; create it, readable by its owner only, where it is missing. Safe across processes.

    Raises OSError, and ValueError for a file that holds no key.
    """
    if not file.exists():
        _create_key_file(file)
    text = file.read_text(encoding="ascii").strip()
    if len(text) != 2 * KEY_BYTES:
        raise ValueError(f"{file} does not hold a key of {KEY_BYTES} bytes in hexadecimal")
    return bytes.fromhex(text)


def _create_key_file(file: Path) -> None:
    """Create the file atomically: write a temporary file and link it, unless another process was faster."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(KEY_BYTES) + "\n")
            stream.flush()
            # On disk before it is linked: after a power failure an empty file would be no key.
            os.fsync(descriptor)
        # Another process was faster; its key is used.
        with suppress(FileExistsError):
            file.hardlink_to(draft)
    finally:
        draft.unlink()
