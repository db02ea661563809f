"""The listening sockets of a server."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

from ..settings import Settings, SettingsError

BACKLOG = 2048
"""Length of the accept queue."""


def listen_on_file(path: str, mode: int) -> socket.socket:
    """Listen on a Unix socket at `path`, replacing a stale socket. The umask sets its mode at creation, so that there
    is no moment at which other users could connect.

    Raises:
        SettingsError: it cannot listen there.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o777 & ~mode)
    try:
        with suppress(FileNotFoundError):
            # Only a socket is removed: a mistyped path must not delete a file.
            if stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)
        listener.bind(path)
        os.chmod(path, mode)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {path}: {error.strerror or error}") from error
    finally:
        os.umask(umask)
    listener.set_inheritable(True)
    return listener


def listen(settings: Settings) -> socket.socket:
    """Listen on the configured address.

    It happens before the greeting, so that a port in use is reported first and port 0 has its number. A client that
    connects before the server accepts waits in the queue instead of being refused.

    Raises:
        SettingsError: it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # A restart can bind although connections of the last run are in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    listener.set_inheritable(True)
    return listener
