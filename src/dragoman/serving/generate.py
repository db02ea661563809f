"""Handlers of everything that generates: read, admit, answer. The dialect is an argument."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import anyio.to_thread
import msgspec

from ..core.errors import RequestError
from ..core.request import GenerateRequest
from ..dialects.base import Call, Header, ReaderOptions
from ..pipeline.admission import Terms
from ..pipeline.run import admit
from .answer import Answer
from .endpoint import Handler, Http, Whole

LARGE_BODY = 256 * 1024
"""Bytes from which a body is read in a thread, so that others do not wait for it."""

EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
# Proxies that buffer would turn a stream into a whole answer.
UNBUFFERED = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def generation(read: Callable[[bytes, ReaderOptions], Call]) -> Handler:
    """The handler of a generating route whose bodies `read` understands."""

    async def handle(http: Http) -> Whole | Answer:
        service = http.service
        body = await http.json()
        large = len(body) > LARGE_BODY
        call = await anyio.to_thread.run_sync(read, body, service.reading) if large else read(body, service.reading)
        refuse_unknown(call.unknown, strict=service.options.strict)
        if service.options.strict and call.warnings:
            raise RequestError(f"This server is strict and ignores nothing: {call.warnings[0]}.")
        model = service.models.find(call.requests[0].model)
        header = Header(service.ids.new(call.id_prefix), int(service.clock.now()), model.name, service.fingerprint)
        requests = [_under(request, model.name) for request in call.requests]
        run = await admit(model, requests, terms(http, header.id, call.tool_prefix))
        warnings = (*call.warnings, *(f"{name} is ignored: unknown field" for name in call.unknown), *run.warnings)
        head = http.head(EVENT_STREAM, warnings) + UNBUFFERED if call.stream else http.head(warnings=warnings)
        patience = service.options.patience
        if run.admitted:
            patience = msgspec.structs.replace(patience, headers=patience.admitted)
        return Answer(
            run.batches,
            call.writer(header),
            stream=call.stream,
            headers=head,
            refuse=http.refusal,
            patience=patience,
        )

    return handle


def refuse_unknown(unknown: tuple[str, ...], *, strict: bool) -> None:
    if strict and unknown:
        raise RequestError(f"Unknown field `{unknown[0]}`.", param=unknown[0])


def terms(http: Http, answer_id: str, tool_prefix: str = "call_") -> Terms:
    """What this server grants this caller."""
    service = http.service
    return Terms(
        answer_id=answer_id,
        new_id=lambda: service.ids.new(tool_prefix),
        now=datetime.fromtimestamp(service.clock.now(), UTC),
        cache_salt=http.caller.owner,
        strict=service.options.strict,
        max_logprobs=service.options.max_logprobs,
    )


def _under(request: GenerateRequest, name: str) -> GenerateRequest:
    """An engine hears the model's own name, not the alias that the client used."""
    return request if request.model == name else msgspec.structs.replace(request, model=name)
