"""Follows one call that uses a model, from its admission to its end: the request log, the limits and usage of its key,
its span, and the line of the access log. All of them read one `RequestLogLine`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType

from ..core.events import Event, TextDelta
from ..pipeline.lifecycle import Lease
from .context import RequestContext
from .request_log import CLIENT_CLOSED_REQUEST, RecentRequest, RequestLog, RequestLogLine
from .tenancy import CallAccount

COMPLETIONS, EMBEDDINGS = "completions", "embeddings"
"""Kinds of usage, as in OpenAI's usage routes."""


class CallObserver:
    """A context that is left when the call has ended, whether it was rejected, finished, failed or cancelled.

    account: takes the call's share of its key's limits; None without keys.
    recent_request: of the last requests, for the page; None without it.
    """

    def __init__(
        self,
        line: RequestLogLine,
        account: CallAccount | None,
        request_log: RequestLog | None,
        elapsed: Callable[[], float],
        recent_request: RecentRequest | None = None,
    ) -> None:
        self.line, self._account, self._recent_request = line, account, recent_request
        self._request_log, self._elapsed = request_log, elapsed

    async def charge_prompt(self, tokens: int) -> None:
        """Raises RateLimited."""
        if self._account is not None:
            await self._account.charge_prompt(tokens)

    def observe(self, batches: AsyncGenerator[list[Event]]) -> AsyncGenerator[list[Event]]:
        """The same batches. This context is left when they end, are closed or are dropped before their first step."""
        return Lease(self, _record_batches(batches, self.line, self._elapsed))

    def record_computation(self, prompt_tokens: int) -> None:
        """An embedding or a score has been computed."""
        line = self.line
        line.status, line.prompt_tokens, line.queue_s = 200, prompt_tokens, None

    def record_warnings(self, warnings: tuple[str, ...]) -> None:
        if self._recent_request is not None:
            self._recent_request.warnings = warnings

    def fail(self, error: Exception) -> None:
        self.line.failed(error)

    def __enter__(self) -> None:
        if self._account is not None:
            self._account.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        line = self.line
        if isinstance(error, Exception):
            line.failed(error)
        elif line.status == CLIENT_CLOSED_REQUEST and line.error is None:
            # Neither finished nor failed: it was cancelled.
            line.error = "cancelled"
        line.latency_s = self._elapsed()
        if self._account is not None:
            if line.prompt_tokens is not None:
                self._account.settle(
                    prompt_tokens=line.prompt_tokens,
                    cached_tokens=line.cached_tokens or 0,
                    output_tokens=line.output_tokens,
                )
            self._account.__exit__(kind, error, traceback)
        if self._request_log is not None:
            self._request_log.put(line)


async def observe_call(context: RequestContext, model: str, kind: str) -> CallObserver | None:
    """Begin to observe a call; None where nothing needs it.

    kind: COMPLETIONS or EMBEDDINGS.

    Raises:
        RateLimited: a limit of the key is reached.
    """
    service, record = context.service, context.record
    request_log, recent_requests = service.generation.request_log, service.generation.recent_requests
    tenancy, is_logged = service.tenancy, request_log is not None or recent_requests is not None
    if not is_logged and tenancy.keyring.is_open and not service.options.observes_calls:
        return None
    clock, started_at = service.clock, service.clock.monotonic()
    line = RequestLogLine(
        clock.now(),
        context.id,
        context.path,
        model,
        key=tenancy.keyring.find_name(context.caller.owner),
        client=context.client_host,
    )
    record.call = line
    recent_request = None if recent_requests is None else recent_requests.add(line)

    def elapsed() -> float:
        return clock.monotonic() - started_at

    try:
        # Clients can choose names that an alias matches by a pattern; the slot's own name is one of few.
        account = await tenancy.admit(context.caller, service.models.find_slot(model).name, kind)
    except Exception as error:
        # Rejected requests are logged too: they are part of the load.
        line.failed(error)
        if request_log is not None:
            request_log.put(line)
        raise
    return CallObserver(line, account, request_log, elapsed, recent_request)


async def _record_batches(
    batches: AsyncGenerator[list[Event]], line: RequestLogLine, elapsed: Callable[[], float]
) -> AsyncGenerator[list[Event]]:
    """Yield the same batches, and record them in the line. Closing it closes `batches`."""
    try:
        async with aclosing(batches):
            async for batch in batches:
                # The common case by far, and all that it changes is a count.
                if line.ttft_s is not None and len(batch) == 1 and type(event := batch[0]) is TextDelta:
                    line.output_tokens += len(event.tokens)
                else:
                    line.record(batch, elapsed())
                yield batch
    except Exception as error:
        line.failed(error)
        raise
