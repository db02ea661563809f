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


def ignore_hangup(_signal: int, _frame: FrameType | None) -> None:
    log.warning("SIGHUP ignored: there is nothing to reload")


class SignalTarget(Protocol):
    """A server that is stopped by signals."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None: ...


def install_signal_handlers(server: SignalTarget, on_hangup: SignalHandler = ignore_hangup) -> None:
    """Install handlers that shut down gracefully with exit code 0, even for signals
    before uvicorn listens.

    SIGHUP shuts down too if standard input is a terminal, since it means that the
    terminal was closed. Otherwise it comes from a service manager or `kill -HUP`, and
    reloads. Under nohup it is ignored.
    """
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, server.handle_exit)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit if os.isatty(0) else on_hangup)
