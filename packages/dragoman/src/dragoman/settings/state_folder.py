"""The directory in which the server keeps what must survive a restart."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def state_directory(environment: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the platform's directory for persistent state. It may not exist yet."""
    if platform == "win32":
        return (
            Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "dragoman"
        )
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dragoman"
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dragoman"
