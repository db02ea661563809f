"""systemd: socket activation (sd_listen_fds), notifications (sd_notify)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, MutableMapping

from ..settings import SettingsError

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
