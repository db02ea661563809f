"""The listening sockets of a server: TCP, or a Unix socket."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress

from ..settings import Settings, SettingsError

BACKLOG = 2048
"""Length of the accept queue."""


def listen_on_file(path: str, mode: int) -> socket.socket:
    """Listen on a Unix socket at `path`, replacing one that no server listens on.

    The umask sets the mode when the file is created: at no time can other users
    connect.

    Raises:
        SettingsError: the server cannot listen there.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o777 & ~mode)
    try:
        with suppress(FileNotFoundError):
            # Only a socket is removed: a mistyped path must not delete a file.
            if stat.S_ISSOCK(os.stat(path).st_mode):
                _check_stale(path)
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


def _check_stale(path: str) -> None:
    """Raise OSError if a server listens on this socket: after a replacement clients
    could no longer reach it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        # A blocking connect would wait if the accept queue is full.
        client.setblocking(False)
        code = client.connect_ex(path)
    if code in (0, errno.EAGAIN):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    if code not in (errno.ECONNREFUSED, errno.ENOENT):
        raise OSError(code, os.strerror(code))


class SocketFile:
    """A listening Unix socket and its file. Raises SettingsError if the server cannot
    listen there.

    listener: the socket of this file, if it listens already.
    """

    def __init__(self, path: str, mode: int, listener: socket.socket | None = None) -> None:
        self.listener = listener or listen_on_file(path, mode)
        self._path = path
        self._identity = _identify(path)

    def remove(self) -> None:
        """Remove the file, unless another server has replaced it since this one stopped
        listening.
        """
        with suppress(FileNotFoundError):
            if _identify(self._path) == self._identity:
                os.unlink(self._path)


def _identify(path: str) -> tuple[int, int, int]:
    # With the time, since file systems reuse the inode number of a removed file.
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_mtime_ns


def listen(settings: Settings) -> socket.socket:
    """Listen on the configured address.

    Called before the greeting, so that a port in use is reported first, and port 0 is
    replaced by the actual port. Clients that connect before the server accepts wait in
    the queue instead of being refused.

    Raises:
        SettingsError: the server cannot listen there.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # Allows a restart to bind while connections of the last run are in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        hint = (
            "; choose another one with --port, or any free one with --port 0"
            if error.errno == errno.EADDRINUSE
            else ""
        )
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}{hint}"
        ) from error
    listener.set_inheritable(True)
    return listener
