"""The terms of a call, which the server sets: identity, limits, time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from msgspec import Struct

from .request_queue import ONE_QUEUE, QueueShare


class CallTerms(Struct, frozen=True):
    """The server's settings for one call.

    answer_id: the response's id; sequence ids are derived from it.
    new_id: generates tool call ids.
    now: the time that templates see.
    cache_salt: separates the prefix caches of different owners.
    queue_share: the API key whose share of the engine the call uses.
    is_background: the server set the request's priority, not the client.
    is_strict: an unsupported parameter is an error, not a warning.
    accepts_unmatched_results: a tool result that answers no call causes a warning, as
        in vLLM, not an error.
    max_logprobs: maximum number of alternatives per token.
    close_at_limit: default for requests that do not set
        `GenerationLimits.close_at_limit`.
    timeout: seconds from admission until the response fails with EngineTimeout; None
        means no deadline.
    begin_start: paces the expensive part of admission, after the cheap checks. It
    returns an awaitable that must be awaited first, or None. None means no pacing.
    arrival_time: arrival of the request, in seconds of the event loop's clock; None if
        the call has no such request.
    """

    answer_id: str
    new_id: Callable[[], str]
    now: datetime
    cache_salt: str = ""
    queue_share: QueueShare = ONE_QUEUE
    is_background: bool = False
    is_strict: bool = False
    accepts_unmatched_results: bool = False
    max_logprobs: int = 20
    close_at_limit: bool = False
    timeout: float | None = None
    begin_start: Callable[[], Awaitable[None] | None] | None = None
    arrival_time: float | None = None
