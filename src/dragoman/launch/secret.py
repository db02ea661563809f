"""The key that encrypts and signs reasoning: configured, or generated and stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from ..settings import Settings, load_or_create_key, state_directory

log = logging.getLogger(__name__)


def load_secret_key(settings: Settings, environment: Mapping[str, str]) -> bytes | None:
    """Return the configured or stored key; None if there is neither, and the caller generates an ephemeral one."""
    if settings.secret_key is not None:
        return settings.secret_key.encode()
    file = _find_key_file(settings.store, environment)
    if file is None:
        return None
    try:
        return load_or_create_key(file)
    except (OSError, ValueError) as error:
        log.warning("reasoning held by clients will be unreadable after a restart: %s", error)
        return None


def _find_key_file(store: str, environment: Mapping[str, str]) -> Path | None:
    """Return the path next to the store; None if the store itself does not outlive the process."""
    kind, _, path = store.partition(":")
    if kind in ("memory", "none"):
        return None
    if kind == "sqlite" and path:
        return Path(f"{path}.key")
    return state_directory(environment) / "secret.key"
