"""The listening sockets of a server, its own or inherited from systemd, their TLS, and
notifications to systemd.

systemd's interfaces are sd_listen_fds and sd_notify. Certificate and key can be
reloaded while the server runs.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

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
    """

    def __init__(self, path: str, mode: int) -> None:
        self.listener = listen_on_file(path, mode)
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


# systemd.

FIRST_FD = 3
"""First descriptor of an inherited socket: SD_LISTEN_FDS_START of sd_listen_fds(3)."""
ALIVE = "WATCHDOG=1"
"""The watchdog's keepalive message of sd_notify(3)."""


def inherit_sockets(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """Take over the listening sockets of systemd's socket activation; [] if the process
    was started otherwise.

    The variables are removed, so that child processes do not claim the sockets.

    Raises:
        SettingsError: an inherited descriptor is not a listening stream socket.
    """
    pid = environment.pop("LISTEN_PID", "")
    number = environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    # sd_listen_fds(3): the variables are only for process LISTEN_PID; its children
    # inherit them without the sockets.
    if pid != str(os.getpid()) or not number.isdecimal():
        return []
    listeners: list[socket.socket] = []
    for fd in range(FIRST_FD, FIRST_FD + int(number)):
        try:
            os.set_inheritable(fd, False)
            listener = socket.socket(fileno=fd)
            is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise SettingsError(
                f"LISTEN_FDS: descriptor {fd} is not a socket: {error.strerror}"
            ) from error
        if listener.type != socket.SOCK_STREAM or not is_listening:
            raise SettingsError(f"LISTEN_FDS: descriptor {fd} is not a listening stream socket")
        listeners.append(listener)
    return listeners


class Notifier:
    """Sends the state of the service to systemd. Does nothing if NOTIFY_SOCKET is not
    set.

    environment: variables of the process, with NOTIFY_SOCKET (a path, or an abstract
        name after `@`) and WATCHDOG_USEC.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        watchdog = environment.get("WATCHDOG_USEC", "")
        # sd_watchdog_enabled(3): without WATCHDOG_PID, WATCHDOG_USEC applies to any
        # process that reads it.
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Half of the timeout, as sd_watchdog_enabled(3) recommends.
        self.watchdog_interval = (
            int(watchdog) / 2_000_000
            if watchdog.isdecimal() and is_ours and self._address
            else None
        )
        """Seconds between two keepalive messages; None if the watchdog is off."""

    def notify_ready(self) -> None:
        self.send("READY=1")

    def notify_reloading(self) -> None:
        # Services of Type=notify-reload have to send the time as well.
        self.send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def notify_stopping(self) -> None:
        self.send("STOPPING=1")

    def notify_alive(self) -> None:
        self.send(ALIVE)

    def send(self, state: str) -> None:
        if self._address[:1] not in ("/", "@"):
            return
        # systemd writes the leading null byte of an abstract name as `@`.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.connect(address)
                channel.send(state.encode())
        except OSError:
            # A failed notification is ignored, as sd_notify(3) recommends.
            pass


# TLS.


def build_tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Build the context for TLS 1.2 and 1.3; None without a certificate. Raises
    SettingsError for an invalid one.
    """
    if settings.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # HTTP/2 is not served: a client that offers both must choose HTTP/1.1.
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    """Load the certificate chain and its key, for all connections that are accepted
    from now on.

    Raises:
        SettingsError: they cannot be read, or do not match; the previous ones stay in
            use.
    """
    assert settings.ssl_certfile is not None
    # The error of `load_cert_chain` does not say which of the two files is missing.
    for flag, path in (
        ("--ssl-certfile", settings.ssl_certfile),
        ("--ssl-keyfile", settings.ssl_keyfile),
    ):
        if path is not None and not Path(path).is_file():
            raise SettingsError(f"{flag}: {path} does not exist")

    def refuse_password() -> str:
        # Without this callback OpenSSL would prompt for the password on the terminal.
        raise SettingsError(
            "--ssl-keyfile: the key is encrypted; store it without a password, readable by the "
            "server only"
        )

    # Loaded into a new context first: a failure could leave the one in use with a
    # certificate and the wrong key.
    for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        try:
            each.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, refuse_password)
        except ssl.SSLError as error:
            reason = error.reason or str(error)
            raise SettingsError(
                f"--ssl-certfile: {settings.ssl_certfile}: {reason.replace('_', ' ').lower()}"
            ) from error
        except OSError as error:
            raise SettingsError(
                f"--ssl-certfile: {error.filename or settings.ssl_certfile}: {error.strerror}"
            ) from error
