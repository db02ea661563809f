"""Observation of a call to a model, from its admission to its end.

One `RequestLogLine` collects the data for the request log, the limits and usage of the
API key, the trace span and the access log.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from ..core.events import Event, TextDelta
from ..core.request import GenerateRequest
from ..core.trace_context import SpanContext, parse_trace_context
from ..pipeline.driver import Stage
from ..pipeline.run_counts import RunCounts
from .recent_requests import RecentRequest
from .request_context import RequestContext
from .request_log import CLIENT_CLOSED_REQUEST, RequestLog, RequestLogLine
from .tenancy import CallAccount
from .tracing import TracedCall


class CallObserver(Stage):
    """Observes one call: as a stage of a generation, or as a context manager around any
    other work.

    line: the data of the call.
    account: charges the call to the limits of its key; None without keys.
    request_log: gets the line at the end; None without a request log.
    now: any clock, seconds.
    traced: the call's span; None without telemetry.
    counts: the counts of a generation; None until it is admitted, and for other work.
    recent: the call's entry among the recent requests; None if they are not kept.
    """

    __slots__ = (
        "_has_text",
        "_now",
        "_recent",
        "_request_log",
        "_started_at",
        "_traced",
        "account",
        "counts",
        "line",
    )

    def __init__(
        self,
        line: RequestLogLine,
        account: CallAccount | None,
        request_log: RequestLog | None,
        now: Callable[[], float],
        traced: TracedCall | None = None,
        recent: RecentRequest | None = None,
    ) -> None:
        self.line = line
        self.account = account
        self._traced = traced
        self._request_log = request_log
        self._recent = recent
        self._now = now
        self._started_at = now()
        self.counts: RunCounts | None = None
        # Whether a further text changes nothing but the count of tokens.
        self._has_text = False

    @property
    def trace(self) -> SpanContext | None:
        """The call's span; None without telemetry."""
        return None if self._traced is None else self._traced.span.context

    def feed(self, batch: list[Event]) -> list[Event]:
        line = self.line
        # The most frequent batch.
        if self._has_text and len(batch) == 1 and type(event := batch[0]) is TextDelta:
            line.output_tokens += len(event.tokens)
            return batch
        line.record(batch, self._now() - self._started_at)
        counts = self.counts
        if counts is not None and not counts.events_carry_tokens:
            line.output_tokens = counts.output_tokens
        self._has_text = line.ttft_s is not None
        return batch

    def record_warnings(self, warnings: tuple[str, ...]) -> None:
        if self._recent is not None:
            self._recent.warnings = warnings

    def record_counts(self, counts: RunCounts) -> None:
        """Take the counts of a generation that has been admitted."""
        self.counts = counts
        if self._recent is not None:
            self._recent.counts = counts

    def record_computation(self, prompt_tokens: int, output_tokens: int = 0) -> None:
        """Record that embeddings, scores or a transcript have been computed."""
        self.line.status = 200
        self.line.queue_s = None
        self.record_tokens(prompt_tokens, output_tokens)

    def record_tokens(self, prompt_tokens: int, output_tokens: int) -> None:
        """Record the tokens so far, which the key is charged if the client leaves."""
        self.line.prompt_tokens = prompt_tokens
        self.line.output_tokens = output_tokens

    def __enter__(self) -> None:
        if self.account is not None:
            self.account.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None, /) -> None:
        line = self.line
        if self._recent is not None:
            # Recent requests are many, and must not hold their runs.
            self._recent.counts = None
        if isinstance(error, Exception):
            line.record_failure(error)
            self._record_computed()
        elif line.status == CLIENT_CLOSED_REQUEST and line.error is None:
            # The initial status, so the call has neither finished nor failed.
            line.error = "cancelled"
            self._record_computed()
        line.latency_s = self._now() - self._started_at
        if self.account is not None:
            if line.prompt_tokens is not None:
                self.account.settle(
                    prompt_tokens=line.prompt_tokens,
                    cached_tokens=line.cached_tokens or 0,
                    output_tokens=line.output_tokens,
                )
            self.account.__exit__(None if error is None else type(error), error, None)
        if self._traced is not None:
            self._traced.end(line)
        if self._request_log is not None:
            self._request_log.put(line)

    def _record_computed(self) -> None:
        """Record what the engine has computed for a client that has left, also if not
        all prompts or choices have started: then no batch has been sent.
        """
        counts = self.counts
        if counts is not None and counts.prompt_tokens is not None:
            self.line.prompt_tokens = counts.prompt_tokens
            self.line.cached_tokens = counts.cached_tokens
            self.line.output_tokens = counts.output_tokens


def find_trace(context: RequestContext, observer: CallObserver | None) -> SpanContext | None:
    """Return the parent of an engine's spans in other servers: the call's span, or
    without telemetry the client's.
    """
    trace = None if observer is None else observer.trace
    return _read_client_trace(context) if trace is None else trace


def _read_client_trace(context: RequestContext) -> SpanContext | None:
    traceparent = context.headers.get("traceparent")
    if traceparent is None:
        return None
    return parse_trace_context(traceparent, context.headers.get("tracestate", ""))


async def observe_call(
    context: RequestContext,
    model: str,
    kind: str,
    request: GenerateRequest | None = None,
    response_id: str = "",
) -> CallObserver | None:
    """Start to observe a call. Return None if no log, limit or telemetry needs it.

    kind: COMPLETIONS, EMBEDDINGS or TRANSCRIPTIONS.
    request, response_id: the request of a generation and the id of its response.

    Raises:
        RateLimited: a limit of the key is reached.
    """
    service = context.service
    record = context.record
    request_log = service.generation.request_log
    tenancy = service.tenancy
    telemetry = service.telemetry
    recent_requests = service.generation.recent_requests
    is_observed = (
        recent_requests is not None
        or request_log is not None
        or telemetry is not None
        or service.options.observes_calls
    )
    if not is_observed and tenancy.keyring.is_open:
        return None
    clock = service.clock
    line = RequestLogLine(
        clock.now(),
        context.id,
        context.path,
        model,
        key=tenancy.keyring.find_name(context.caller.owner),
        client=context.client_host,
    )
    record.call = line
    traced = None
    if telemetry is not None:
        # A WebSocket message or a line of a batch has no server span.
        parent = _read_client_trace(context) if record.span is None else record.span.context
        traced = telemetry.start_call(parent, model, kind, request, response_id)
    recent = None if recent_requests is None else recent_requests.add(line)
    observer = CallObserver(line, None, request_log, clock.monotonic, traced, recent)
    if tenancy.keyring.is_open:
        return observer
    try:
        # By the slot's name: aliases can be patterns, so the number of names that
        # clients can send is unlimited.
        name = service.models.find_slot(model).name
        observer.account = await tenancy.admit(context.caller, name, kind)
    except BaseException as error:
        # Rejected requests are logged too: they are part of the load.
        observer.__exit__(type(error), error, None)
        raise
    return observer
