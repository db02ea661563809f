"""The process that this one has replaced, after an engine had failed for good.

The process executes its command again (execve). It keeps its process id, environment
and listening sockets, so neither clients nor service managers see an end; its memory,
threads and device contexts end, which no restart inside the process achieves.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import NoReturn

import msgspec
from msgspec import Struct

from ..pipeline.model_lifecycle import SlotHistory

log = logging.getLogger(__name__)

_VARIABLE = "_DRAGOMAN_PREDECESSOR"
_FIRST_FD = 3
"""The lowest descriptor that is not a standard stream."""


class Predecessor(Struct, frozen=True):
    """What a process leaves for the one that replaces it.

    pid: its process id, which both have.
    descriptors: its listening sockets.
    has_socket_file: whether the last of them is a Unix socket whose file it created.
    models: the histories of its models, by name.
    """

    pid: int = 0
    descriptors: tuple[int, ...] = ()
    has_socket_file: bool = False
    models: dict[str, SlotHistory] = {}

    def take_listeners(self) -> list[socket.socket]:
        """Open its listening sockets; call once."""
        return [socket.socket(fileno=descriptor) for descriptor in self.descriptors]


def inherit_predecessor(environment: MutableMapping[str, str]) -> Predecessor:
    """Take over from the process that this one has replaced; an empty Predecessor if
    there is none. The variable is removed for the sake of child processes.
    """
    text = environment.pop(_VARIABLE, "")
    predecessor = msgspec.json.decode(text, type=Predecessor) if text else Predecessor()
    return predecessor if predecessor.pid == os.getpid() else Predecessor()


def execute_again(
    command: Sequence[str],
    listeners: Sequence[socket.socket],
    models: Mapping[str, SlotHistory],
    *,
    has_socket_file: bool,
) -> NoReturn:
    """Replace this process by a new one.

    command: the program and its arguments.
    listeners, models, has_socket_file: see `Predecessor`.
    """
    descriptors = tuple(listener.fileno() for listener in listeners)
    predecessor = Predecessor(os.getpid(), descriptors, has_socket_file, dict(models))
    # A library may have opened files without close-on-exec; a device stays in use while
    # one of its files is open. Not every container has the directory.
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            if int(name) >= _FIRST_FD:
                # The directory's own descriptor is closed already.
                with suppress(OSError):
                    os.set_inheritable(int(name), False)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    log.error("a new process replaces this one, since its engine does not recover")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, _VARIABLE: msgspec.json.encode(predecessor).decode()}
    os.execve(command[0], [*command], environment)
