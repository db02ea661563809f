"""Handlers of generation routes in any dialect: parse the body, admit the call,
respond.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import anyio.to_thread
import msgspec
from msgspec.structs import replace
from starlette.datastructures import Headers

from ..core.engine import PromptCounter
from ..core.errors import CORE_NAMES, FieldNames, RequestError, Unsupported
from ..core.request import CURRENT_SPAN, Conversation, GenerateRequest, parse_trace_context
from ..dialects.base import GenerationCall, Header, Profile, ReaderOptions, Writer
from ..dialects.body import check_text, parse_digits
from ..pipeline.admission import CallTerms
from ..pipeline.metrics import add_timings
from ..pipeline.models import EventBackend, ServedModel
from ..pipeline.prepare import TokenJob
from ..pipeline.request_queue import QueueShare
from ..pipeline.run import AdmittedRun, admit
from .auth import Caller
from .call_observer import observe_call
from .context import RequestContext, build_owner_files
from .disconnect import cancel_on_disconnect
from .endpoint import Handler, HttpRequest, JsonResponse
from .service import Service
from .streaming import EventBatches, GenerationResponder, RawHeaders, Responder
from .tenancy import COMPLETIONS

T = TypeVar("T")

TIMEOUT_HEADER = "x-dragoman-timeout"
# Seconds as a decimal number without sign or exponent.
_SECONDS = re.compile(r"[0-9]{1,7}(\.[0-9]{1,6})?", re.ASCII)
_MAX_SESSION_ID = 1024
"""Characters of a session id; longer ones are truncated."""

LARGE_BODY = 256 * 1024
"""Bytes above which a body is parsed in a thread, because parsing would block the event
loop for too long.
"""

BACKGROUND_PRIORITY_OFFSET = 2**32
"""Added to the priority of background requests, which keep their order among each
other. Lower values run first.
"""

EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
# Otherwise buffering proxies would deliver a stream only when it is complete.
NO_BUFFERING_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class AdmittedCall(msgspec.Struct, frozen=True):
    """An admitted call.

    header: the id, creation time and model of the response.
    run: the admitted run with its batches of events.
    warnings: the fields that the parser and the engine ignore.
    field_names: the field names of the client's dialect, for warnings that come later.
    """

    header: Header
    run: AdmittedRun
    warnings: tuple[str, ...]
    field_names: FieldNames = CORE_NAMES

    def join_warnings(self, later: tuple[str, ...]) -> tuple[str, ...]:
        """Return the warnings together with those that the engine reports when it
        starts.
        """
        return tuple(dict.fromkeys((*self.warnings, *map(self.field_names.rename_warning, later))))


def build_generation_handler(read: Callable[[bytes, ReaderOptions], GenerationCall]) -> Handler:
    """Build the handler of a generation route.

    read: parses its bodies.
    """

    async def handle(http: HttpRequest) -> JsonResponse | Responder:
        return await run_generation(http, await read_call(http, read))

    return handle


async def run_generation(http: HttpRequest, call: GenerationCall) -> Responder:
    """Admit a call and return its responder. Raises as `admit_call`."""
    admitted = await admit_call(http, call, build_header(http, call))
    return build_responder(
        http, call.writer(admitted.header), admitted, admitted.run.batches, stream=call.stream
    )


async def read_call(http: HttpRequest, read: Callable[[bytes, ReaderOptions], T]) -> T:
    return await parse_body(http, await http.read_json(), read)


async def parse_body(
    context: RequestContext, body: bytes, read: Callable[[bytes, ReaderOptions], T]
) -> T:
    options = build_reader_options(context)
    return await run_in_thread_if_large(lambda data: read(data, options), body)


async def run_in_thread_if_large(read: Callable[[bytes], T], body: bytes) -> T:
    """Run `read`, in a thread for a large body."""
    try:
        return await anyio.to_thread.run_sync(read, body) if len(body) > LARGE_BODY else read(body)
    except RequestError as error:
        # The reader has already named the dialect's field; translating the name again
        # could change it.
        error.is_translated = True
        raise


def build_reader_options(context: RequestContext) -> ReaderOptions:
    """Return the reader options for this caller."""
    generation = context.service.generation
    # Reasoning that one owner received is invalid in the requests of another.
    sealing_key = generation.sealer.for_owner(context.caller.owner)
    models = context.service.models
    # Built per request: the models, and those that the caller may use, can change.
    return replace(
        generation.reader_options,
        sealing_key=sealing_key,
        default_model=models.default,
        keeps_seal=any(model.capabilities.verifies_reasoning for model in models),
    )


def build_header(context: RequestContext, call: GenerationCall) -> Header:
    """Build the header of the response. Raises ModelNotFound: the model is unknown."""
    service = context.service
    # All requests of a call name one model: the dialects have one field for it.
    requested_model = call.requests[0].model
    try:
        slot = service.models.find_slot(requested_model)
    except RequestError as error:
        call.field_names.translate(error)
        raise
    name = slot.name if slot.model is None else slot.model.find_response_name(requested_model)
    return Header(
        service.ids.new(call.id_prefix),
        int(service.clock.now()),
        name,
        service.generation.fingerprint,
    )


async def admit_call(context: RequestContext, call: GenerationCall, header: Header) -> AdmittedCall:
    """Prepare and admit a call, record it in the request log, and remember its prompt
    for `explain`.

    Raises:
        RequestError: the request is invalid.
        ClientGone: the client has disconnected.
    """
    work = _prepare_and_observe(context, call, header)
    if isinstance(context, HttpRequest) and any(map(_uses_workers, call.requests)):
        # Compiling a schema can take seconds, so it is cancelled if the client
        # disconnects.
        admitted = await cancel_on_disconnect(context.on_disconnect, work)
    else:
        admitted = await work
    recent_prompts = context.service.generation.recent_prompts
    if recent_prompts is not None:
        for job in admitted.run.jobs:
            if isinstance(job, TokenJob):
                recent_prompts.remember(context.caller.owner, header.model, job.prompt)
    return admitted


def _uses_workers(request: GenerateRequest) -> bool:
    """Whether the request has a grammar or template to compile, which can take seconds.

    Other requests do not justify the cost of a task that a disconnect can cancel.
    """
    prompt = request.prompt
    has_program = isinstance(prompt, Conversation) and (
        bool(prompt.tools) or prompt.template.template is not None
    )
    return request.constraint is not None or has_program


async def _prepare_and_observe(
    context: RequestContext, call: GenerationCall, header: Header
) -> AdmittedCall:
    """Prepare the call within the limits of its key, and observe it until its end."""
    observer = await observe_call(context, header.model, COMPLETIONS, call.requests[0], header.id)
    if observer is None:
        return _add_timings(context, await prepare_call(context, call, header))
    try:
        admitted = await prepare_call(context, call, header)
        observer.record_warnings(admitted.warnings)
        if observer.account is not None:
            try:
                await observer.account.charge_prompt(
                    sum(job.queue_ticket.tokens for job in admitted.run.jobs)
                )
            except RequestError:
                # The engine has not started, but the request is already in its queue.
                await admitted.run.batches.aclose()
                raise
    except BaseException as error:
        observer.__exit__(type(error), error, error.__traceback__)
        raise
    # From here on the batches own the observer, and exit it.
    run = admitted.run
    if run.direct is not None:
        run.direct.add_observer(observer.record)
    return _add_timings(
        context, replace(admitted, run=replace(run, batches=observer.observe(run.batches)))
    )


def _add_timings(context: RequestContext, admitted: AdmittedCall) -> AdmittedCall:
    """Add timings to the response if the server reports them."""
    if not context.service.options.enable_per_request_metrics:
        return admitted
    batches = add_timings(admitted.run.batches, context.service.clock.monotonic)
    # Timings are added to the last batch, so batches must not bypass this generator
    # (`direct`).
    return replace(admitted, run=replace(admitted.run, batches=batches, direct=None))


async def prepare_call(
    context: RequestContext, call: GenerationCall, header: Header
) -> AdmittedCall:
    """Prepare and admit a call without logging it or remembering its prompt."""
    generation = context.service.generation
    names = call.field_names
    try:
        warnings = collect_warnings(call, strict=context.service.options.strict)
        model = await context.service.models.load_and_find(header.model)
        terms = build_terms(context, header.id, call.tool_prefix)
        # Before media is fetched: under overload a rejection must be cheap.
        model.queue.check_capacity(terms.queue_share)
        resolved = [
            _resolve_for_engine(request, header.model, model, context.caller)
            for request in call.requests
        ]
        with_media = await generation.media.resolve_requests(
            build_owner_files(context), model, resolved
        )
        requests = [_apply_header_directives(request, context.headers) for request in with_media]
        if context.service.telemetry is None:
            traceparent = context.headers.get("traceparent")
            # Without telemetry the server passes the client's trace context to engines
            # that trace. The task may still hold the context of an earlier request,
            # which must be replaced.
            if traceparent is not None or CURRENT_SPAN.get() is not None:
                CURRENT_SPAN.set(
                    parse_trace_context(traceparent, context.headers.get("tracestate", ""))
                )
        run = await admit(model, requests, terms, generation.meters)
    except RequestError as error:
        names.translate(error)
        raise
    return AdmittedCall(header, run, (*warnings, *map(names.rename_warning, run.warnings)), names)


def build_responder(
    http: HttpRequest,
    writer: Writer,
    admitted: AdmittedCall,
    batches: EventBatches,
    *,
    stream: bool,
    content_type: tuple[bytes, bytes] = EVENT_STREAM,
) -> Responder:
    """Build the responder of an admitted call.

    batches: the batches of the admitted run, or a wrapper that observes them as its
        `direct` requires.
    content_type: the content type of a stream.
    """
    # A stream can carry warnings only in comments, which only server-sent events have.
    can_carry_warnings = not stream or content_type == EVENT_STREAM

    unread_query = http.describe_unread_query()

    def render(warnings: tuple[str, ...], *, is_required: bool = False) -> tuple[RawHeaders, bytes]:
        warnings += unread_query
        response_headers = (
            build_stream_headers(http, warnings, content_type)
            if stream
            else http.build_headers(warnings=warnings)
        )
        body_warnings = (
            http.render_warnings(warnings, is_required=is_required) if can_carry_warnings else b""
        )
        return response_headers, body_warnings

    def add_warnings(later: tuple[str, ...], has_headers: bool) -> tuple[RawHeaders, bytes]:
        # If the headers have already been sent, the body is the only place for the
        # warnings.
        return render(admitted.join_warnings(later), is_required=has_headers)

    headers, rendered_warnings = render(admitted.warnings)
    return GenerationResponder(
        batches,
        writer,
        http.build_response_start(headers, find_header_timeout(http.service, admitted)),
        http.service.stream_monitor,
        stream=stream,
        warnings=rendered_warnings,
        add_warnings=add_warnings,
        run=admitted.run.direct,
    )


def find_header_timeout(service: Service, admitted: AdmittedCall) -> float:
    """Return the seconds for which a stream's headers may wait for the first event."""
    timeouts = service.options.timeouts
    return timeouts.admitted_headers if admitted.run.is_admitted else timeouts.headers


def build_stream_headers(
    http: HttpRequest,
    warnings: tuple[str, ...] = (),
    content_type: tuple[bytes, bytes] = EVENT_STREAM,
) -> RawHeaders:
    return http.build_headers(content_type, warnings) + NO_BUFFERING_HEADERS


async def find_queried_model(http: HttpRequest) -> ServedModel:
    """Load and return the model in the query, or else the default model."""
    models = http.service.models
    # The key may permit only models that are not served; then the name is empty, and
    # the model is not found.
    return await models.load_and_find(
        http.query.get("model") or next((slot.name for slot in models.slots), "")
    )


class WarningSource(Protocol):
    """A parsed body with warnings and the names of unknown fields."""

    @property
    def warnings(self) -> tuple[str, ...]: ...

    @property
    def unknown(self) -> tuple[str, ...]: ...


def collect_warnings(call: WarningSource, *, strict: bool) -> tuple[str, ...]:
    """Return the warnings for the client.

    Raises:
        RequestError: the server is strict and there are warnings.
    """
    reject_unknown_fields(call.unknown, strict=strict)
    if strict and call.warnings:
        raise RequestError(f"This server is strict (--strict): {call.warnings[0]}.")
    return (*call.warnings, *(f"{name} is ignored: unknown field" for name in call.unknown))


def reject_unknown_fields(unknown: tuple[str, ...], *, strict: bool) -> None:
    if strict and unknown:
        raise RequestError(f"Unknown field `{unknown[0]}`.", param=unknown[0])


async def count_with_engine(model: ServedModel, request: GenerateRequest) -> int:
    """Count the prompt of an engine that renders it itself. Raises Unsupported if the
    engine cannot.
    """
    backend = model.backend
    if not isinstance(backend, EventBackend) or not isinstance(backend.engine, PromptCounter):
        raise Unsupported("This model's engine does not support counting tokens.", param="model")
    return await backend.engine.count_prompt_tokens(request)


def build_terms(context: RequestContext, answer_id: str, tool_prefix: str = "call_") -> CallTerms:
    """Return the terms of a call: ids, limits and identity for this caller."""
    service = context.service
    return CallTerms(
        answer_id=answer_id,
        new_id=lambda: service.ids.new(tool_prefix),
        now=datetime.fromtimestamp(service.clock.now(), UTC),
        cache_salt=context.caller.owner,
        queue_share=find_queue_share(context),
        is_background=context.caller.is_background,
        is_strict=service.options.strict,
        accepts_unmatched_results=service.options.profile is Profile.VLLM,
        max_logprobs=service.options.max_logprobs,
        close_at_limit=context.service.options.close_at_limit,
        timeout=request_timeout(context),
        begin_start=service.generation.start_limiter.acquire,
        arrival_time=context.record.body_received_at,
    )


def find_queue_share(context: RequestContext) -> QueueShare:
    """Return the caller's share of an engine's queue."""
    return context.service.tenancy.find_share(context.caller.owner)


def request_timeout(context: RequestContext) -> float | None:
    """Return the timeout in seconds: the server's limit, or less if the client requests
    it.

    Raises:
        RequestError: the header is malformed.
    """
    limit = context.service.options.request_timeout
    requested = context.headers.get(TIMEOUT_HEADER)
    if requested is None:
        return limit
    # float() would also accept nan, inf and 1_0.
    if not _SECONDS.fullmatch(requested) or not float(requested):
        raise RequestError(
            f"{TIMEOUT_HEADER}: must be a positive number of seconds", code="invalid_header"
        )
    return float(requested) if limit is None else min(float(requested), limit)


def _apply_header_directives(request: GenerateRequest, headers: Headers) -> GenerateRequest:
    """Apply the directives in the request's headers.

    x-dragoman-reply, x-dragoman-fault: JSON directives for scriptable engines.
    x-data-parallel-rank: the engine core that a router selected, as in vLLM.
    x-session-id: the client's session.
    """
    reply = headers.get("x-dragoman-reply")
    fault = headers.get("x-dragoman-fault")
    rank = headers.get("x-data-parallel-rank")
    session = headers.get("x-session-id")
    if reply is None and fault is None and rank is None and session is None:
        return request
    directives: dict[str, str | int] = {}
    for name, value in (("reply", reply), ("fault", fault)):
        if value is None:
            continue
        try:
            # ASGI headers are bytes, which Starlette decodes as latin-1; JSON is UTF-8.
            text = value.encode("latin-1").decode()
            check_text(text.encode())
            msgspec.json.decode(text)
        except (UnicodeError, msgspec.DecodeError, RecursionError, RequestError) as error:
            raise RequestError(f"x-dragoman-{name}: {error}", code="invalid_header") from None
        directives[name] = text
    # Validated here, because engines use it as an index.
    if rank is not None:
        if (number := parse_digits(rank, 9)) is None:
            raise RequestError("x-data-parallel-rank: must be a number", code="invalid_header")
        directives["data_parallel_rank"] = number
    # As in vLLM, the body takes precedence.
    if session and request.extras.session_id is None:
        directives["session_id"] = session[:_MAX_SESSION_ID]
    return replace(request, extras=replace(request.extras, **directives))


def _resolve_for_engine(
    request: GenerateRequest, name: str, model: ServedModel, caller: Caller
) -> GenerateRequest:
    """Replace an alias by the model's own name, set the adapter, and lower the priority
    of background requests.
    """
    extras = request.extras
    if name != model.name:
        extras = replace(extras, lora=name)
    priority = (
        request.priority + BACKGROUND_PRIORITY_OFFSET if caller.is_background else request.priority
    )
    # The most frequent case needs no copy of the request.
    if request.model == name and request.priority == priority and extras is request.extras:
        return request
    return replace(request, model=name, priority=priority, extras=extras)
