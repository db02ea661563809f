"""The socket that a server listens on. Knows of settings only which address they name."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

from ..settings import Settings, SettingsError

BACKLOG = 2048
"""Connections that wait to be taken."""


def listen_on_file(path: str, mode: int) -> socket.socket:
    """A Unix socket at this path, in the place of one that is left over. It is created with its mode, so that there is
    no moment at which others could connect. Raises SettingsError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o777 & ~mode)
    try:
        with suppress(FileNotFoundError):
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
