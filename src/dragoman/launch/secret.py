"""The key that reasoning is sealed and signed with: the one that was set, or one that is made and kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..settings import Settings, kept_key, state_directory

log = logging.getLogger(__name__)


def secret_key(settings: Settings, environment: Mapping[str, str]) -> bytes | None:
    """None where none was set and none can be kept: the server then has one that ends with it."""
    if settings.secret_key is not None:
        return settings.secret_key.encode()
    try:
        return kept_key(state_directory(environment) / "secret.key")
    except (OSError, ValueError) as error:
        log.warning("reasoning that clients keep cannot be read after a restart: %s", error)
        return None
