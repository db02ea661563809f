"""Starts, stops and monitors the llama.cpp process."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import IO

import msgspec

from ...core.errors import EngineError
from .. import llamacpp_child
from ..llamacpp_child import CHILD_VARIABLES, READY, LaunchSettings

log = logging.getLogger(__name__)

_MAX_LOG_LINES = 20


class LlamaCppProcess:
    """The llama.cpp process, which can be restarted after it has ended. `start` and
    `stop` block.
    """

    def __init__(self, launch: LaunchSettings) -> None:
        self._launch = launch
        self._directory: Path | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._log_lines: deque[str] = deque(maxlen=_MAX_LOG_LINES)
        self.key = ""

    @property
    def socket(self) -> str:
        return "" if self._directory is None else str(self._directory / "llama.sock")

    @property
    def is_alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start and wait until the model is loaded. Raises EngineError with llama.cpp's
        reason if loading fails.
        """
        self.stop()
        # The directory is accessible to this user only; the key is a second barrier.
        self._directory = Path(tempfile.mkdtemp(prefix="dragoman-"))
        self.key = secrets.token_hex(16)
        launch = msgspec.structs.replace(self._launch, socket=self.socket, key=self.key)
        child = self._child = subprocess.Popen(
            [sys.executable, "-m", llamacpp_child.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A new session, so that Ctrl-C reaches only the server, which then stops
            # this process itself.
            start_new_session=True,
            env={**os.environ, **CHILD_VARIABLES},
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._log_lines.clear()
        # Reads continuously, because llama.cpp would block on a full pipe.
        log_reader = threading.Thread(
            target=self._read_log, args=(child.stderr,), name="llamacpp-log", daemon=True
        )
        log_reader.start()
        try:
            child.stdin.write(msgspec.json.encode(launch) + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            pass  # It has already ended; the reason is reported below.
        # Other lines may come first; the end of the output means that the process has
        # ended.
        if not any(line.decode(errors="replace").strip() == READY for line in child.stdout):
            child.wait()
            log_reader.join()
            self.stop()
            # The first error line at the end of its log.
            marker = "error loading model: "
            errors = [
                line.rpartition(marker)[2] for line in self._log_lines if marker.strip(": ") in line
            ]
            reason = (errors or list(self._log_lines)[-1:] or ["it ended without an explanation"])[
                0
            ]
            raise EngineError(f"llama.cpp cannot load {self._launch.path}: {reason}")

    def stop(self) -> None:
        child = self._child
        self._child = None
        if child is not None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            child.kill()  # it has no state to save
            child.wait()
            child.stdout.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _read_log(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                log_line = line.decode(errors="replace").rstrip()
                self._log_lines.append(log_line)
                log.info("llama.cpp: %s", log_line)
