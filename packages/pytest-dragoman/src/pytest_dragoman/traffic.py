"""The requests of a server, from the first byte to the end of the response."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman import GenerateRequest

from .queued_reply import ReplyPlan
from .sent_request import SentRequest

if TYPE_CHECKING:
    from starlette.types import Scope


@dataclass(slots=True)
class Exchange:
    """A request with what the server sends.

    Attributes:
        request: the record of the request.
        plan: what to send; None until the request was read.
        is_dropped: the reply ended with a lost connection.
    """

    request: SentRequest
    plan: ReplyPlan | None = None
    is_dropped: bool = False


class Traffic:
    """All requests since the last reset, oldest first. The server's thread writes it, and
    the test's thread reads it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: list[SentRequest] = []
        self._current: ContextVar[Exchange] = ContextVar("exchange")

    @property
    def requests(self) -> tuple[SentRequest, ...]:
        """The requests, oldest first."""
        return tuple(self._requests)

    @property
    def generations(self) -> tuple[SentRequest, ...]:
        """Those for a generation, as far as the server could read them."""
        return tuple(each for each in self._requests if each.generation is not None)

    def now(self) -> float:
        """Read the clock."""
        return self._clock()

    def clear(self) -> None:
        """Forget all requests."""
        self._requests = []

    def begin(self, scope: Scope) -> Exchange:
        """Record a request of which the head has arrived."""
        request = SentRequest(
            scope.get("method", ""),
            scope["path"],
            scope.get("query_string", b"").decode("latin-1"),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            arrived_at=self._clock(),
        )
        exchange = Exchange(request)
        self._requests.append(request)
        self._current.set(exchange)
        return exchange

    def begin_generation(self, generation: GenerateRequest) -> Exchange:
        """Return the exchange of this task, whose request was read. A generation that no
        HTTP request waits for, as in a batch, has one of its own.
        """
        exchange = self.current
        if exchange is None or exchange.request.generation is not None:
            exchange = Exchange(SentRequest(arrived_at=self._clock()))
            self._requests.append(exchange.request)
            self._current.set(exchange)
        exchange.request.generation = generation
        return exchange

    @property
    def current(self) -> Exchange | None:
        """The exchange of this task."""
        return self._current.get(None)

    def list_earlier_attempts(self, request: SentRequest) -> list[SentRequest]:
        """List the earlier requests of the same conversation."""
        assert request.generation is not None
        prompt = request.generation.prompt
        return [
            earlier
            for earlier in self._requests
            if earlier is not request
            and earlier.generation is not None
            and earlier.generation.prompt == prompt
        ]
