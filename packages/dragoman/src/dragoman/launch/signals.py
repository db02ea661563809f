"""The signal handlers of the process."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Protocol

log = logging.getLogger(__name__)


SignalHandler = Callable[[int, FrameType | None], None]


def ignore_reload(number: int, _frame: FrameType | None) -> None:
    log.warning("%s ignored: there is nothing to reload", signal.Signals(number).name)


class SignalTarget(Protocol):
    """A server that is stopped by signals."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None: ...


def install_signal_handlers(server: SignalTarget, on_reload: SignalHandler = ignore_reload) -> None:
    """Install handlers that shut down gracefully with exit code 0, even for signals
    before uvicorn listens.

    SIGHUP shuts down too if standard input is a terminal, since it means that the
    terminal was closed. Otherwise it comes from a service manager or `kill -HUP`, and
    reloads. Under nohup it stays ignored, since the closed terminal sends it to the
    engine's processes too, which would die of it. SIGUSR1 reloads in any case.
    """
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, server.handle_exit)
    if sys.platform == "win32":
        return
    signal.signal(signal.SIGUSR1, on_reload)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit if os.isatty(0) else on_reload)
    elif on_reload is not ignore_reload:
        log.info(
            "SIGHUP is ignored, as under nohup: `kill -USR1 %d` reloads models, certificates and "
            "the log level; the keys file is read again when it changes",
            os.getpid(),
        )
