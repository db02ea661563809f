"""The connection of a worker to its supervisor."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

from ...ipc.frames import read_frame
from ...serving.key_reloader import KeysReport
from ...serving.merged_metrics import MetricFamily
from ..systemd import ALIVE, Notifier
from .messages import (
    Alive,
    AnyCommand,
    CollectMetrics,
    KeysReply,
    KeysRequest,
    MergedMetrics,
    MergeRequest,
    MetricsReport,
    WorkerReport,
    decode_command,
    encode_frame,
)

log = logging.getLogger(__name__)

REPLY_SECONDS = 10.0
"""Time for the supervisor to collect the answers of all workers, for which it waits a
few seconds itself.
"""
Reply = TypeVar("Reply")


class SupervisorLink(Notifier):
    """A worker's connection to its supervisor: sends service notifications and reports,
    and receives commands.

    Implements MetricsExchange and KeysExchange.
    """

    def __init__(self, end: socket.socket, watchdog_interval: float | None = None) -> None:
        super().__init__({})
        self.watchdog_interval = watchdog_interval
        self._end = end
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._read_metrics: Callable[[], Sequence[MetricFamily]] = tuple
        self._merges: dict[int, asyncio.Future[Sequence[MetricFamily]]] = {}
        self._key_requests: dict[int, asyncio.Future[KeysReport]] = {}
        self._ids = count()
        self._is_lost = False

    async def open(self) -> None:
        """Connect with the running event loop."""
        self._streams = await asyncio.open_unix_connection(sock=self._end)

    def send(self, state: str) -> None:
        """Forward a keepalive to the supervisor. Other states are dropped: it notifies
        the service manager itself.
        """
        if state == ALIVE:
            self.report(Alive())

    def report(self, message: WorkerReport) -> None:
        # Without streams the event loop does not run yet: the report is a failure to
        # start, and the process exits.
        if self._streams is None:
            self._end.sendall(encode_frame(message))
        else:
            self._streams[1].write(encode_frame(message))

    async def receive(self) -> AnyCommand | None:
        """Return the next command that the link does not handle itself; None if the
        supervisor has died.
        """
        assert self._streams is not None
        reader = self._streams[0]
        try:
            while True:
                match decode_command(await read_frame(reader)):
                    case CollectMetrics():
                        self.report(MetricsReport(tuple(self._read_metrics())))
                    case MergedMetrics(id, families):
                        waiting = self._merges.get(id)
                        # The client may have disconnected while the supervisor
                        # collected the metrics.
                        if waiting is not None and not waiting.done():
                            waiting.set_result(families)
                    case KeysReply(id, report):
                        reloading = self._key_requests.get(id)
                        if reloading is not None and not reloading.done():
                            reloading.set_result(report)
                    case command:
                        return command
        except (asyncio.IncompleteReadError, ConnectionError):
            # Later merges fail at once, since no reply would arrive.
            self._is_lost = True
            for waiting in (*self._merges.values(), *self._key_requests.values()):
                if not waiting.done():
                    waiting.set_exception(ConnectionError("the supervisor has died"))
            return None

    def provide(self, read: Callable[[], Sequence[MetricFamily]]) -> None:
        self._read_metrics = read

    async def merge(self) -> Sequence[MetricFamily]:
        return await self._request(
            lambda id: MergeRequest(id, tuple(self._read_metrics())), self._merges
        )

    async def reload_keys(self) -> KeysReport:
        return await self._request(KeysRequest, self._key_requests)

    async def _request(
        self, build: Callable[[int], WorkerReport], waiting: dict[int, asyncio.Future[Reply]]
    ) -> Reply:
        """Send a request to the supervisor, and return its reply. Raises
        ConnectionError.

        build: builds the request with its number.
        waiting: gets the future of the reply by that number.
        """
        if self._is_lost:
            raise ConnectionError("the supervisor has died")
        id = next(self._ids)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        waiting[id] = reply
        try:
            self.report(build(id))
            async with asyncio.timeout(REPLY_SECONDS):
                return await reply
        except TimeoutError:
            raise ConnectionError("the supervisor does not respond") from None
        finally:
            del waiting[id]
