"""The socket that a server listens on. Knows of settings only which address they name."""

from __future__ import annotations

import socket

from ..settings import Settings, SettingsError

BACKLOG = 2048
"""Connections that wait to be taken."""


def listen(settings: Settings) -> socket.socket:
    """Bound before anything is said, so that a port in use is told plainly and port 0 has its number. It listens too:
    who connects as soon as it is told where waits for the engine instead of being refused. Raises SettingsError.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    listener.set_inheritable(True)
    return listener
