"""The messages between the supervisor and its workers, or the engine process, and the supervisor's end of a socket.

A frame is the length of its message as four bytes, little-endian, and the message in MessagePack.
"""

from __future__ import annotations

import socket
from contextlib import suppress

import msgspec
from msgspec import Struct

from ...serving.metrics_exchange import MetricFamily
from ..remote_engine import HostedModel

LENGTH_BYTES = 4


class WorkerReport(Struct, frozen=True, tag=True):
    """What a worker tells its supervisor."""


class Ready(WorkerReport, frozen=True, tag=True):
    """The worker accepts connections. greeting: the lines for people."""

    greeting: tuple[str, ...]


class EngineReady(WorkerReport, frozen=True, tag=True):
    """The engine process accepts front ends."""

    model: HostedModel


class StartFailed(WorkerReport, frozen=True, tag=True):
    """The worker or the engine process cannot serve, and exits."""

    reason: str


class Alive(WorkerReport, frozen=True, tag=True):
    """The event loop runs."""


class Reloaded(WorkerReport, frozen=True, tag=True):
    """A reload has ended. adopted: names of the settings that have their new values now."""

    adopted: tuple[str, ...]


class MergeRequest(WorkerReport, frozen=True, tag=True):
    """A client asks for the metrics of all workers. id: of the request, in this worker. own: those of this worker."""

    id: int
    own: tuple[MetricFamily, ...]


class MetricsReport(WorkerReport, frozen=True, tag=True):
    """The answer to CollectMetrics."""

    own: tuple[MetricFamily, ...]


class WorkerCommand(Struct, frozen=True, tag=True):
    """What the supervisor tells a worker."""


class Stop(WorkerCommand, frozen=True, tag=True):
    """Shut down: gracefully, or at once."""

    is_forced: bool = False


class Reload(WorkerCommand, frozen=True, tag=True):
    """Read the settings again, and report when that has ended."""


class CollectMetrics(WorkerCommand, frozen=True, tag=True):
    """WorkerReport the worker's own metrics."""


class MergedMetrics(WorkerCommand, frozen=True, tag=True):
    """The answer to a MergeRequest."""

    id: int
    families: tuple[MetricFamily, ...]


AnyReport = Ready | EngineReady | StartFailed | Alive | Reloaded | MergeRequest | MetricsReport
AnyCommand = Stop | Reload | CollectMetrics | MergedMetrics

_encode = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(AnyReport).decode
decode_command = msgspec.msgpack.Decoder(AnyCommand).decode


def encode_frame(message: WorkerReport | WorkerCommand) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class WorkerChannel:
    """The supervisor's end of the socket to a worker. Never blocks: what a worker does not read is buffered."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self._received, self._unsent = bytearray(), bytearray()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: WorkerCommand) -> None:
        self._unsent += encode_frame(message)
        self.flush()

    def flush(self) -> None:
        """Send as much as the worker's buffer takes."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # The worker is gone; its end is noticed elsewhere.
            self._unsent.clear()

    def receive(self) -> tuple[list[AnyReport], bool]:
        """Return the messages that have arrived, and whether more may come."""
        is_open = True
        with suppress(BlockingIOError):
            try:
                while chunk := self.socket.recv(1 << 16):
                    self._received += chunk
                is_open = False
            except ConnectionError:
                is_open = False
        reports: list[AnyReport] = []
        # A stream socket has no message boundaries: each report is preceded by its length.
        while len(self._received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "little")
            if len(self._received) < end:
                break
            reports.append(_decode_report(bytes(self._received[LENGTH_BYTES:end])))
            del self._received[:end]
        return reports, is_open

    def close(self) -> None:
        self.socket.close()
