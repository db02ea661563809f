"""Admission of a call: prepared within the limits of its key, observed until its end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ..core.errors import RequestError, Unsupported
from ..core.field_names import CORE_NAMES, FieldNames
from ..core.request import Conversation, GenerateRequest
from ..core.server_tools import RequestedServer, ToolList
from ..core.trace_context import SpanContext
from ..dialects.interfaces import GenerationCall, Header
from ..pipeline.admit import AdmittedRun, admit
from ..pipeline.request_preparation import TokenJob
from ..pipeline.response_times import TimingsReport
from ..pipeline.served_model import ServedModel
from .approval_claims import ApprovalClaims
from .auth import Caller
from .call_observer import find_trace, observe_call
from .client_warnings import collect_warnings
from .disconnect import cancel_on_disconnect
from .header_directives import apply_header_directives
from .http_request import HttpRequest
from .media import has_media
from .request_context import RequestContext, build_owner_files
from .request_terms import build_terms
from .tenancy import COMPLETIONS
from .tool_journal import ToolJournal
from .tool_loop import ToolCaller, ToolLoop, add_placeholders, list_server_tools

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
    tool_loop: the turns between which this server calls tools; None if there is one
        turn.
    """

    header: Header
    run: AdmittedRun
    warnings: tuple[str, ...]
    field_names: FieldNames = CORE_NAMES
    tool_loop: ToolLoop | None = None


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


async def attach_server_tools(context: RequestContext, call: GenerationCall) -> GenerationCall:
    """Return the call with the tools of its servers, which list them now.

    Raises:
        RequestError: a server cannot be used here.
        ClientGone: the client has disconnected.
    """
    if call.with_tool_lists is None:
        return call
    check_tool_caller(context, call.unlisted)
    return call.with_tool_lists(await list_requested_tools(context, call.unlisted))


def check_tool_caller(context: RequestContext, servers: Sequence[RequestedServer]) -> None:
    """Check that a client waits for the answer: a job makes its requests again after a
    restart, and with them calls that cannot be undone.

    Raises:
        RequestError: no client waits.
    """
    if context.caller.is_background:
        path = servers[0].path if servers else "tools"
        raise Unsupported(
            f"'{path}': tools of MCP servers are not supported in a batch, where their calls "
            "could be made twice.",
            param=path,
        )


async def list_requested_tools(
    context: RequestContext, servers: Sequence[RequestedServer]
) -> tuple[ToolList, ...]:
    """List the tools of servers. Raises as `attach_server_tools`."""
    work = list_server_tools(context.service.tool_servers, servers, context.caller.owner)
    if isinstance(context, HttpRequest):
        return await cancel_on_disconnect(context.on_disconnect, work)
    return await work


async def admit_call(
    context: RequestContext,
    call: GenerationCall,
    header: Header,
    journal: ToolJournal | None = None,
) -> AdmittedCall:
    """Prepare and admit a call, record it in the request log, and remember its prompt
    for `explain`.

    journal: the progress of an answer that can be continued.

    Raises:
        RequestError: the request is invalid.
        ClientGone: the client has disconnected.
    """
    work = _prepare_and_observe(context, call, header, journal)
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
    """Whether the request has a grammar or template to compile, which can take seconds."""
    prompt = request.prompt
    has_program = isinstance(prompt, Conversation) and (
        bool(prompt.tools) or prompt.template.template is not None
    )
    return request.constraint is not None or has_program


async def _prepare_and_observe(
    context: RequestContext, call: GenerationCall, header: Header, journal: ToolJournal | None
) -> AdmittedCall:
    """Prepare the call within the limits of its key, and observe it until its end."""
    observer = await observe_call(context, header.model, COMPLETIONS, call.requests[0], header.id)
    trace = find_trace(context, observer)
    try:
        admitted = (
            await prepare_call(context, call, header, trace)
            if call.server_tools is None
            else await _prepare_turns(context, call, header, trace, journal or ToolJournal())
        )
        batches = admitted.run.batches
        if observer is not None:
            observer.record_warnings(admitted.warnings)
            observer.record_counts(admitted.run.counts)
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


async def _prepare_turns(
    context: RequestContext,
    call: GenerationCall,
    header: Header,
    trace: SpanContext | None,
    journal: ToolJournal,
) -> AdmittedCall:
    """Prepare a call whose tools this server calls, with the turns after its first."""
    plan = call.server_tools
    tool_servers = context.service.tool_servers
    if plan is None or tool_servers is None:
        return await prepare_call(context, call, header, trace)

    async def prepare(request: GenerateRequest) -> AdmittedRun:
        turn = replace(call, requests=(request,), warnings=(), unknown=())
        return (await prepare_call(context, turn, header, trace)).run

    (request,) = call.requests
    first = replace(call, requests=(add_placeholders(request, plan),))
    admitted = await prepare_call(context, first, header, trace)
    owner = context.caller.owner
    claims = ApprovalClaims(context.service.store, owner, context.service.clock.now)
    caller = ToolCaller(tool_servers, plan, owner, claims, journal)
    loop = ToolLoop(request, admitted.run, plan, caller, prepare, journal)
    return replace(admitted, run=replace(admitted.run, batches=loop.batches), tool_loop=loop)


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
        requests: list[GenerateRequest] = []
        for request in call.requests:
            resolved = _resolve_for_engine(request, header.model, model, context.caller)
            # Most requests have no media.
            if has_media(resolved):
                resolved = await generation.media.resolve_request(
                    build_owner_files(context), model, resolved
                )
            directed = apply_header_directives(resolved, context.headers)
            requests.append(directed if trace is None else replace(directed, trace=trace))
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
