"""Parsing of a request's body into a call, in a thread if it is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio.to_thread
from msgspec.structs import replace

from ..core.errors import RequestError
from ..dialects.interfaces import ReaderOptions
from .http_request import HttpRequest
from .request_context import RequestContext

T = TypeVar("T")
Args = TypeVarTuple("Args")


LARGE_BODY = 256 * 1024
"""Bytes above which a body is parsed in a thread, because parsing would block the event
loop for too long.
"""


async def read_call(http: HttpRequest, read: Callable[[bytes, ReaderOptions], T]) -> T:
    return await parse_body(http, await http.read_json(), read)


async def parse_body(
    context: RequestContext, body: bytes, read: Callable[[bytes, ReaderOptions], T]
) -> T:
    return await run_in_thread_if_large(read, body, build_reader_options(context))


async def run_in_thread_if_large(read: Callable[[bytes, *Args], T], body: bytes, *args: *Args) -> T:
    """Run `read`, in a thread for a large body."""
    try:
        return (
            await anyio.to_thread.run_sync(read, body, *args)
            if len(body) > LARGE_BODY
            else read(body, *args)
        )
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
    # Built per request: the models, and those that the caller may use, can change.
    slots = context.service.models.slots
    keeps_seal = False
    for slot in slots:
        if slot.model is not None and slot.model.capabilities.verifies_reasoning:
            keeps_seal = True
    return replace(
        generation.reader_options,
        sealing_key=sealing_key,
        default_model=slots[0].name if len(slots) == 1 else None,
        keeps_seal=keeps_seal,
    )
