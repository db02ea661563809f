"""The messages of the supervisor to its workers or the engine process, with their
reports.

They are encoded in MessagePack, in frames of `core.frames`.
"""

from __future__ import annotations

import socket
from contextlib import suppress

import msgspec
from msgspec import Struct

from ...engines.remote import EngineChanges
from ...ipc.frames import FrameBuffer, build_frame
from ...serving.key_reloader import KeysReport
from ...serving.merged_metrics import MetricFamily
from ..hosted_model import HostedModel


class WorkerReport(Struct, frozen=True, tag=True):
    """A message of a worker to its supervisor."""


class Ready(WorkerReport, frozen=True, tag=True):
    """The worker accepts connections.

    greeting: the startup lines for the user.
    """

    greeting: tuple[str, ...]


class EngineReady(WorkerReport, frozen=True, tag=True):
    """The engine process accepts front ends."""

    model: HostedModel


class EngineChanged(WorkerReport, frozen=True, tag=True):
    """The state that the next engine process has to inherit has changed."""

    changes: EngineChanges


class StartFailed(WorkerReport, frozen=True, tag=True):
    """The worker or the engine process cannot serve, and exits."""

    reason: str


class Alive(WorkerReport, frozen=True, tag=True):
    """The event loop runs."""


class Reloaded(WorkerReport, frozen=True, tag=True):
    """A reload has ended.

    adopted: names of the settings that now have their new values.
    """

    adopted: tuple[str, ...]


class KeysRead(WorkerReport, frozen=True, tag=True):
    """The API keys were read again, or are invalid, which the worker has logged.

    number: the number of the request.
    problem: the reason why they are invalid.
    """

    number: int
    problem: str | None = None


class KeysRequest(WorkerReport, frozen=True, tag=True):
    """A client of this worker requests that all workers read the API keys again.

    id: number of the request, unique in this worker.
    """

    id: int


class MergeRequest(WorkerReport, frozen=True, tag=True):
    """A client of this worker requests the metrics of all workers.

    id: number of the request, unique in this worker.
    own: the metrics of this worker.
    """

    id: int
    own: tuple[MetricFamily, ...]


class MetricsReport(WorkerReport, frozen=True, tag=True):
    """The reply to CollectMetrics.

    own: the metrics of this worker.
    """

    own: tuple[MetricFamily, ...]


class WorkerCommand(Struct, frozen=True, tag=True):
    """A message of the supervisor to a worker."""


class Stop(WorkerCommand, frozen=True, tag=True):
    """Shut down gracefully; with `is_forced`, at once."""

    is_forced: bool = False


class ReadKeys(WorkerCommand, frozen=True, tag=True):
    """Read the API keys again. The worker replies with KeysRead.

    number: the number of the request.
    """

    number: int


class KeysReply(WorkerCommand, frozen=True, tag=True):
    """The reply to a KeysRequest. id: the number of the request."""

    id: int
    report: KeysReport


class Reload(WorkerCommand, frozen=True, tag=True):
    """Reload the settings. The worker replies with Reloaded."""


class CollectMetrics(WorkerCommand, frozen=True, tag=True):
    """Report the worker's own metrics. The worker replies with MetricsReport."""


class MergedMetrics(WorkerCommand, frozen=True, tag=True):
    """The reply to a MergeRequest.

    id: the number of the request.
    families: the metrics of all workers.
    """

    id: int
    families: tuple[MetricFamily, ...]


AnyReport = (
    Ready
    | EngineReady
    | EngineChanged
    | StartFailed
    | Alive
    | Reloaded
    | KeysRead
    | KeysRequest
    | MergeRequest
    | MetricsReport
)
AnyCommand = Stop | ReadKeys | KeysReply | Reload | CollectMetrics | MergedMetrics

_encode = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(AnyReport).decode
decode_command = msgspec.msgpack.Decoder(AnyCommand).decode


def encode_frame(message: WorkerReport | WorkerCommand) -> bytes:
    return build_frame(_encode(message))


class WorkerChannel:
    """The supervisor's end of the socket to a worker. It never blocks: unsent messages
    are buffered.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self._buffer = FrameBuffer()
        self._unsent = bytearray()

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
            # The worker has died, which the supervisor detects by its exit.
            self._unsent.clear()

    def receive(self) -> tuple[list[AnyReport], bool]:
        """Return the messages that have arrived, and whether more may come."""
        is_open = True
        reports: list[AnyReport] = []
        with suppress(BlockingIOError):
            try:
                # Read until it would block: a worker may report a failure just before
                # it exits.
                while chunk := self.socket.recv(1 << 16):
                    reports += map(_decode_report, self._buffer.feed(chunk))
                is_open = False
            except ConnectionError:
                # ECONNRESET instead of an end of file: the worker died with unread
                # commands in its buffer.
                is_open = False
        return reports, is_open

    def close(self) -> None:
        self.socket.close()
