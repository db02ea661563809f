"""Parsing of a request's body into a call, in a thread if it is large."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar, TypeVarTuple

import anyio.to_thread
from msgspec.structs import replace

from ..core.errors import RequestError
from ..dialects.interfaces import ReaderOptions
from .crypto import Sealer
from .http_request import HttpRequest
from .request_context import RequestContext
from .service import FindReaderOptions

T = TypeVar("T")
Args = TypeVarTuple("Args")


LARGE_BODY = 256 * 1024
"""Bytes above which a body is parsed in a thread, because parsing would block the event
loop for too long.
"""


MAX_READER_OPTIONS = 4096
"""Number of owners whose reader options are kept."""


async def read_call(http: HttpRequest, read: Callable[[bytes, ReaderOptions], T]) -> T:
    body = await http.read_json()
    return await run_in_thread_if_large(read, body, build_reader_options(http))


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


def build_options_finder(options: ReaderOptions, sealer: Sealer) -> FindReaderOptions:
    """Build the function that returns the reader options of an owner.

    It returns the same object for the same arguments, by which the plan cache finds the
    plans of earlier bodies.

    options: those that all owners share.
    """

    @lru_cache(MAX_READER_OPTIONS)
    def find(owner: str, default_model: str | None, keeps_seal: bool, /) -> ReaderOptions:
        return replace(
            options,
            # Reasoning that one owner received is invalid in the requests of another.
            sealing_key=sealer.for_owner(owner),
            default_model=default_model,
            keeps_seal=keeps_seal,
        )

    return find


def build_reader_options(context: RequestContext) -> ReaderOptions:
    """Return the reader options for this caller."""
    # Asked per request: the models, and those that the caller may use, can change.
    slots = context.service.models.slots
    keeps_seal = False
    for slot in slots:
        if slot.model is not None and slot.model.capabilities.verifies_reasoning:
            keeps_seal = True
    return context.service.generation.find_reader_options(
        context.caller.owner, slots[0].name if len(slots) == 1 else None, keeps_seal
    )
