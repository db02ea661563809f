"""The terms of a call that its request sets: the caller's queue share, the timeout."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ..core.errors import RequestError
from ..dialects.interfaces import Profile
from ..pipeline.call_terms import CallTerms
from ..pipeline.request_queue import QueueShare
from .request_context import RequestContext

TIMEOUT_HEADER = "x-dragoman-timeout"


# Seconds as a decimal number without sign or exponent.
_SECONDS = re.compile(r"[0-9]{1,7}(\.[0-9]{1,6})?", re.ASCII)


def build_terms(context: RequestContext, answer_id: str, tool_prefix: str = "call_") -> CallTerms:
    """Return the terms of a call: ids, limits and identity for this caller."""
    service = context.service
    options = service.options
    caller = context.caller
    return CallTerms(
        answer_id=answer_id,
        new_id=lambda: service.ids.new(tool_prefix),
        now=datetime.fromtimestamp(service.clock.now(), UTC),
        cache_salt=caller.owner,
        queue_share=service.tenancy.find_share(caller.owner),
        is_background=caller.is_background,
        is_strict=options.strict,
        accepts_unmatched_results=options.profile is Profile.VLLM,
        max_logprobs=options.max_logprobs,
        close_at_limit=options.close_at_limit,
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
