"""The secret key that encrypts reasoning: configured, or else generated in the state directory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from ..settings import Settings, load_or_create_key, state_directory

log = logging.getLogger(__name__)


log = logging.getLogger(__name__)


def load_secret_key(settings: Settings, environment: Mapping[str, str]) -> bytes | None:
    """Return the configured or stored key; None if there is neither, and the caller
    generates an ephemeral one.
    """
    if settings.secret_key is not None:
        return settings.secret_key.encode()
    kind, _, path = settings.store.partition(":")
    # If the store does not outlive the process, the key need not either.
    if kind in ("memory", "none"):
        return None
    file = (
        Path(f"{path}.key")
        if kind == "sqlite" and path
        else state_directory(environment) / "secret.key"
    )
    try:
        return load_or_create_key(file)
    except (OSError, ValueError) as error:
        log.warning("reasoning held by clients will be unreadable after a restart: %s", error)
        return None
