"""Admission of a call: prepared within the limits of its key, observed until its end."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..core.errors import RequestError
from ..core.field_names import CORE_NAMES, FieldNames
from ..core.request import Conversation, GenerateRequest
from ..core.trace_context import SpanContext
from ..dialects.interfaces import GenerationCall, Header
from ..pipeline.admit import AdmittedRun, admit
from ..pipeline.request_preparation import TokenJob
from ..pipeline.response_times import TimingsReport
from ..pipeline.served_model import ServedModel
from .auth import Caller
from .call_observer import find_trace, observe_call
from .client_warnings import collect_warnings
from .disconnect import cancel_on_disconnect
from .header_directives import apply_header_directives
from .http_request import HttpRequest
from .request_context import RequestContext, build_owner_files
from .request_terms import build_terms
from .tenancy import COMPLETIONS

BACKGROUND_PRIORITY_OFFSET = 2**32
"""Added to the priority of background requests, which keep their order among each
other. Lower values run first.
"""


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
    trace = find_trace(context, observer)
    try:
        admitted = await prepare_call(context, call, header, trace)
        batches = admitted.run.batches
        if observer is not None:
            observer.record_warnings(admitted.warnings)
            observer.counts = admitted.run.counts
            if observer.account is not None:
                try:
                    await observer.account.charge_prompt(
                        sum(job.queue_ticket.tokens for job in admitted.run.jobs)
                    )
                except RequestError:
                    # The engine has not started, but the model is already held.
                    await batches.aclose()
                    raise
    except BaseException as error:
        if observer is not None:
            observer.close(error)
        raise
    # From here on the batches own the observer, and close it.
    if observer is not None:
        batches.add_stage(observer)
    if context.service.options.enable_per_request_metrics:
        batches.add_stage(TimingsReport(context.service.clock.monotonic))
    return admitted


async def prepare_call(
    context: RequestContext,
    call: GenerationCall,
    header: Header,
    trace: SpanContext | None = None,
) -> AdmittedCall:
    """Prepare and admit a call without logging it or remembering its prompt.

    trace: as in GenerateRequest.
    """
    generation = context.service.generation
    names = call.field_names
    try:
        warnings = collect_warnings(call, strict=context.service.options.strict)
        model = await context.service.models.load_and_find(header.model)
        terms = build_terms(context, header.id, call.tool_prefix)
        # Before media is fetched: under overload a rejection must be cheap.
        model.queues.generation.check_capacity(terms.queue_share)
        resolved = [
            _resolve_for_engine(request, header.model, model, context.caller)
            for request in call.requests
        ]
        with_media = await generation.media.resolve_requests(
            build_owner_files(context), model, resolved
        )
        requests = [apply_header_directives(request, context.headers) for request in with_media]
        if trace is not None:
            requests = [replace(request, trace=trace) for request in requests]
        run = await admit(model, requests, terms, generation.meters)
    except RequestError as error:
        names.translate(error)
        raise
    return AdmittedCall(header, run, (*warnings, *map(names.rename_warning, run.warnings)), names)


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
