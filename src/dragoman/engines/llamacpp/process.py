"""Starts and ends the process that llama.cpp runs in, and says whether it lives. Knows nothing of requests."""

from __future__ import annotations

import logging
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import IO, Literal

import msgspec
from msgspec import Struct

from ...core.errors import EngineError

log = logging.getLogger(__name__)

READY = "dragoman: ready"

_MAX_LOG_LINES = 20


class LaunchSettings(Struct, frozen=True):
    """context: tokens that all sequences have together. batch, ubatch: of one step, in llama.cpp's words.

    unified: sequences share one cache, and each is looked for in all of it; otherwise each has an equal part.
    kv_type: numbers of the cache, in ggml's words. gpu_layers: -1 leaves it to llama.cpp. threads: None leaves it to
    llama.cpp. pooling: of a model that makes vectors, in the numbers of llama.cpp's llama_pooling_type; None for one
    that generates. mmproj: the file with a model's eyes; marker: what stands for an image in texts.
    """

    path: str
    context: int
    sequences: int
    batch: int
    ubatch: int
    unified: bool = False
    kv_type: Literal["F16", "BF16", "F32"] = "F16"
    gpu_layers: int = -1
    threads: int | None = None
    pooling: int | None = None
    mmproj: str | None = None
    marker: str = ""
    socket: str = ""
    key: str = ""


class LlamaCppProcess:
    """May be started again after it has ended. `start` and `stop` block."""

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
        """Returns when the model is loaded. Raises EngineError, with llama.cpp's reason, where it cannot be."""
        self.stop()
        # Nobody else can enter the directory; the key is for what could be done from within.
        self._directory, self.key = Path(tempfile.mkdtemp(prefix="dragoman-")), secrets.token_hex(16)
        launch = msgspec.structs.replace(self._launch, socket=self.socket, key=self.key)
        child = self._child = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # An interrupt from the keyboard is for the server, which then ends this one in its own time.
            start_new_session=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._log_lines.clear()
        log_reader = threading.Thread(target=self._read_log, args=(child.stderr,), name="llamacpp-log", daemon=True)
        log_reader.start()
        try:
            child.stdin.write(msgspec.json.encode(launch) + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended already; why is said below.
        if not any(line.decode(errors="replace").strip() == READY for line in child.stdout):
            child.wait()
            log_reader.join()
            self.stop()
            raise EngineError(f"llama.cpp cannot load {self._launch.path}: {self._find_reason()}")

    def stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            child.kill()  # There is nothing that it would have to bring to an end.
            child.wait()
            child.stdout.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _read_log(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                self._log_lines.append(text)
                log.info("llama.cpp: %s", text)

    def _find_reason(self) -> str:
        """The first of its last words that tells of an error."""
        errors = [
            line.rpartition("error loading model: ")[2] for line in self._log_lines if "error loading model" in line
        ]
        return (errors or list(self._log_lines)[-1:] or ["it ended without an explanation"])[0]
