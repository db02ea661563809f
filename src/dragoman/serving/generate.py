"""Handlers of everything that generates: read, admit, answer. The dialect is an argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import anyio.to_thread
import msgspec
from starlette.datastructures import Headers

from ..core.errors import RequestError
from ..core.request import Conversation, GenerateRequest
from ..dialects.base import Call, Header, ReaderOptions, Writer
from ..dialects.body import check_text
from ..pipeline.admission import Terms
from ..pipeline.models import ServedModel
from ..pipeline.prepare import TokenJob
from ..pipeline.run import Run, admit
from .answer import Answer, Batches, GeneratedAnswer, RawHeaders
from .auth import Caller
from .endpoint import Handler, Http, Whole
from .leaving import unless_gone
from .party import Party, files_of
from .request_log import Line, noted
from .service import Service

T = TypeVar("T")

TIMEOUT_HEADER = "x-dragoman-timeout"
_SECONDS = re.compile(r"[0-9]{1,7}(\.[0-9]{1,6})?", re.ASCII)

LARGE_BODY = 256 * 1024
"""Bytes from which a body is read in a thread, so that others do not wait for it."""

BACKGROUND = 2**32
"""Added to the priority of what nobody waits for: lower runs first, and clients' own numbers keep their order."""

EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
# Proxies that buffer would turn a stream into a whole answer.
UNBUFFERED = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that will run. warnings: all that is ignored, of the reader and of the engine."""

    header: Header
    run: Run
    warnings: tuple[str, ...]


def generation(read: Callable[[bytes, ReaderOptions], Call]) -> Handler:
    """The handler of a generating route whose bodies `read` understands."""

    async def handle(http: Http) -> Whole | Answer:
        return await generated(http, await read_call(http, read))

    return handle


async def generated(http: Http, call: Call) -> Answer:
    """What the engine makes of a call. Raises as `admit_call`."""
    admitted = await admit_call(http, call, new_header(http, call))
    return answer(http, call.writer(admitted.header), admitted, admitted.run.batches, stream=call.stream)


async def read_call(http: Http, read: Callable[[bytes, ReaderOptions], T]) -> T:
    return await read_body(http, await http.json(), read)


async def read_body(party: Party, body: bytes, read: Callable[[bytes, ReaderOptions], T]) -> T:
    options = reading(party)
    return await off_the_loop(lambda data: read(data, options), body)


async def off_the_loop(read: Callable[[bytes], T], body: bytes) -> T:
    """What `read` makes of a body, without others waiting for a large one."""
    return await anyio.to_thread.run_sync(read, body) if len(body) > LARGE_BODY else read(body)


def reading(party: Party) -> ReaderOptions:
    """How bodies of this caller are read."""
    service = party.service
    return msgspec.structs.replace(service.reading, sealing=service.seals.of(party.caller.owner))


def new_header(party: Party, call: Call) -> Header:
    """Raises ModelNotFound."""
    service = party.service
    asked = call.requests[0].model
    place = service.models.place(asked)
    name = place.name if place.model is None else place.model.answering_name(asked)
    return Header(service.ids.new(call.id_prefix), int(service.clock.now()), name, service.fingerprint)


async def admit_call(party: Party, call: Call, header: Header) -> Admitted:
    """Raises RequestError for all that can be told before the engine is asked, ClientGone."""
    work = _logged(party, call, header)
    if isinstance(party, Http) and any(_uses_workers(request) for request in call.requests):
        admitted = await unless_gone(party.watch, work)
    else:
        admitted = await work
    recent = party.service.recent
    if recent is not None:
        for job in admitted.run.jobs:
            if isinstance(job, TokenJob):
                recent.remember(party.caller.owner, header.model, job.prompt)
    return admitted


def _uses_workers(request: GenerateRequest) -> bool:
    """It brings a program to be compiled or run, which may take seconds. Other work is not worth a task."""
    prompt = request.prompt
    has_program = isinstance(prompt, Conversation) and (bool(prompt.tools) or prompt.template.template is not None)
    return request.constraint is not None or has_program


async def _logged(party: Party, call: Call, header: Header) -> Admitted:
    """Prepared; what becomes of it is told in the request log, where there is one."""
    request_log, clock = party.service.request_log, party.service.clock
    if request_log is None:
        return await prepare_call(party, call, header)
    line, began = Line(clock.now(), party.id, party.path, header.model), clock.monotonic()
    try:
        admitted = await prepare_call(party, call, header)
    except Exception as error:
        line.failed(error)
        request_log.put(line)
        raise
    batches = noted(admitted.run.batches, line, request_log, lambda: clock.monotonic() - began)
    return replace(admitted, run=replace(admitted.run, batches=batches))


async def prepare_call(party: Party, call: Call, header: Header) -> Admitted:
    """The same for a call that need not run: nothing is remembered of it."""
    options, meters = party.service.options, party.service.meters
    ignored = what_is_ignored(call, strict=options.strict)
    model = await party.service.models.ready(header.model)
    placed = [_placed(request, header.model, model, party.caller) for request in call.requests]
    with model.held():
        brought = [await party.service.media.gathered(files_of(party), model, request) for request in placed]
    requests = [_steered(request, party.headers) for request in brought]
    run = await admit(model, requests, terms(party, header.id, call.tool_prefix), meters)
    return Admitted(header, run, (*ignored, *run.warnings))


def answer(http: Http, writer: Writer, admitted: Admitted, batches: Batches, *, stream: bool) -> Answer:
    """Sends what comes out of `batches`: those of the admitted run, or what was made of them."""
    warnings = admitted.warnings
    head = stream_head(http, warnings) if stream else http.head(warnings=warnings)
    opening = http.opening(head, patience_for(http.service, admitted))
    return GeneratedAnswer(batches, writer, opening, http.service.lookout, stream=stream)


def patience_for(service: Service, admitted: Admitted) -> float:
    """Seconds that the headers of a stream may wait."""
    patience = service.options.patience
    return patience.admitted if admitted.run.admitted else patience.headers


def stream_head(http: Http, warnings: tuple[str, ...] = ()) -> RawHeaders:
    return http.head(EVENT_STREAM, warnings) + UNBUFFERED


class Ignoring(Protocol):
    """What a reader made of a body: with warnings, and the names of fields that nobody knows."""

    @property
    def warnings(self) -> tuple[str, ...]: ...

    @property
    def unknown(self) -> tuple[str, ...]: ...


def what_is_ignored(call: Ignoring, *, strict: bool) -> tuple[str, ...]:
    """Warnings for the client. Raises RequestError where the server is strict, and there is something to warn of."""
    refuse_unknown(call.unknown, strict=strict)
    if strict and call.warnings:
        raise RequestError(f"This server is strict (--strict): {call.warnings[0]}.")
    return (*call.warnings, *(f"{name} is ignored: unknown field" for name in call.unknown))


def refuse_unknown(unknown: tuple[str, ...], *, strict: bool) -> None:
    if strict and unknown:
        raise RequestError(f"Unknown field `{unknown[0]}`.", param=unknown[0])


def terms(party: Party, answer_id: str, tool_prefix: str = "call_") -> Terms:
    """What this server grants this caller."""
    service = party.service
    return Terms(
        answer_id=answer_id,
        new_id=lambda: service.ids.new(tool_prefix),
        now=datetime.fromtimestamp(service.clock.now(), UTC),
        cache_salt=party.caller.owner,
        background=party.caller.background,
        strict=service.options.strict,
        max_logprobs=service.options.max_logprobs,
        timeout=request_timeout(party),
    )


def request_timeout(party: Party) -> float | None:
    """Seconds that an answer may take: the server's bound, or less where the client says so. Raises RequestError."""
    most, given = party.service.options.request_timeout, party.headers.get(TIMEOUT_HEADER)
    if given is None:
        return most
    if not _SECONDS.fullmatch(given) or not float(given):
        raise RequestError(f"{TIMEOUT_HEADER}: must be a positive number of seconds", code="invalid_header")
    return float(given) if most is None else min(float(given), most)


def _steered(request: GenerateRequest, headers: Headers) -> GenerateRequest:
    """Headers by which a client tells an engine that can be told what to say, or how to fail; their values are JSON.

    And vLLM's, by which a router says which copy of the engine it means.
    """
    told = {name: _json_header(headers, f"x-dragoman-{name}") for name in ("reply", "fault")}
    told["data_parallel_rank"] = rank = headers.get("x-data-parallel-rank")
    if rank is not None and not (rank.isascii() and rank.isdecimal() and len(rank) < 10):
        raise RequestError("x-data-parallel-rank: must be a number", code="invalid_header")
    if not any(told.values()):
        return request
    return msgspec.structs.replace(request, extras=msgspec.structs.replace(request.extras, **told))


def _json_header(headers: Headers, name: str) -> str | None:
    value = headers.get(name)
    if value is None:
        return None
    try:
        text = value.encode("latin-1").decode()
        check_text(text.encode())
        msgspec.json.decode(text)
    except (UnicodeError, msgspec.DecodeError, RecursionError, RequestError) as error:
        raise RequestError(f"{name}: {error}", code="invalid_header") from None
    return text


def _placed(request: GenerateRequest, name: str, model: ServedModel, caller: Caller) -> GenerateRequest:
    """An engine hears the model's own name and not the alias that the client used, is told of its adapter, and of what
    can wait."""
    extras = request.extras
    if name != model.name:
        extras = msgspec.structs.replace(extras, lora=msgspec.json.encode(name).decode())
    priority = request.priority + BACKGROUND if caller.background else request.priority
    if request.model == name and request.priority == priority and extras is request.extras:
        return request
    return msgspec.structs.replace(request, model=name, priority=priority, extras=extras)
