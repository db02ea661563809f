"""The secret key that encrypts reasoning: configured, or else generated in the state
directory.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..settings import Settings, state_directory

log = logging.getLogger(__name__)


log = logging.getLogger(__name__)


def load_secret_key(settings: Settings, environment: Mapping[str, str]) -> bytes | None:
    """Return the configured or stored key; None if there is neither, and the caller
    generates an ephemeral one.
    """
    if settings.secret_key is not None:
        return settings.secret_key.encode()
    # If the store does not outlive the process, the key need not either.
    if settings.store.partition(":")[0] in ("memory", "none"):
        return None
    try:
        return load_or_create_key(find_key_file(settings.store, environment))
    except (OSError, ValueError) as error:
        log.warning("reasoning held by clients will be unreadable after a restart: %s", error)
        return None


def find_key_file(store: str, environment: Mapping[str, str]) -> Path:
    """Return the file of the generated key. store: the setting."""
    kind, _, path = store.partition(":")
    if kind == "sqlite" and path:
        return Path(f"{path}.key")
    return state_directory(environment) / "secret.key"


KEY_BYTES = 32


def load_or_create_key(file: Path) -> bytes:
    """Load the key from a file, or create the file, readable by its owner only. Safe
    across processes.

    Raises:
        OSError: the file cannot be read or created.
        ValueError: the file does not contain a key.
    """
    if not file.exists():
        # Atomic: write a temporary file, then link it.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="ascii") as stream:
                stream.write(secrets.token_hex(KEY_BYTES) + "\n")
                stream.flush()
                # Sync before linking: a power failure must not leave an empty key file.
                os.fsync(descriptor)
            # If another process was faster, its key is used.
            with suppress(FileExistsError):
                file.hardlink_to(draft)
        finally:
            draft.unlink()
    text = file.read_text(encoding="ascii").strip()
    if len(text) != 2 * KEY_BYTES:
        raise ValueError(f"{file} does not hold a key of {KEY_BYTES} bytes in hexadecimal")
    return bytes.fromhex(text)
