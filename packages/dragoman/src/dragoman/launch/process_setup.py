"""Preparation of the process before it serves: logging, checks, inherited sockets,
garbage collector.
"""

from __future__ import annotations

import gc
import os
import secrets
import socket
from collections.abc import Sequence

import msgspec

from ..settings import Settings, SettingsError, check_exposure
from .logs import configure_logging
from .secret_key import load_secret_key
from .systemd import inherit_sockets
from .unsupported_settings import warn_unsupported


def enable_collector() -> None:
    """Enable and tune the garbage collector for serving; the caller may have disabled
    it during startup.
    """
    # Startup objects live until exit. Collections skip frozen objects, which also keeps
    # their memory pages shared with forked processes: a collection writes to every
    # object.
    gc.freeze()
    # A request creates hundreds of objects that live until its end. With the default
    # threshold of 700, collections of the youngest generation would find nearly all
    # alive, and promote objects that are about to be freed.
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def prepare_process(
    settings: Settings, listeners: Sequence[socket.socket] = ()
) -> tuple[Settings, list[socket.socket], bytes]:
    """Configure logging, check the settings, and take over the sockets of systemd's
    socket activation.

    listeners: the sockets of the process that this one has replaced.

    Returns: the settings with the address of inherited sockets, these sockets, and the
        secret key.

    Raises: SettingsError.
    """
    configure_logging(settings)
    warn_unsupported(settings)
    inherited = [*listeners] or inherit_sockets(os.environ)
    if inherited:
        settings = adopt_address(settings, inherited[0])
    # One key for all servers of the process: a load balancer may send a conversation's
    # next turn to another one, which must decrypt its reasoning.
    return settings, inherited, load_secret_key(settings, os.environ) or secrets.token_bytes(32)


def adopt_address(settings: Settings, listener: socket.socket) -> Settings:
    """Return the settings with the address of an inherited socket in place of the
    configured one.

    Raises:
        SettingsError: the address is reachable from other machines, and there is no API
            key.
    """
    if settings.instances.items:
        raise SettingsError(
            "instances: each needs its own port, which socket activation does not provide"
        )
    address = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return msgspec.structs.replace(settings, uds=str(address))
    adopted = msgspec.structs.replace(settings, uds=None, host=address[0], port=address[1])
    check_exposure(adopted, "LISTEN_FDS")
    return adopted
