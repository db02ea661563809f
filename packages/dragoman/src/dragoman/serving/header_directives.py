"""Directives in a request's headers: scripted replies, faults, the engine core, the
session.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace
from starlette.datastructures import Headers

from ..core.errors import RequestError
from ..core.request import GenerateRequest
from ..dialects.field_errors import parse_digits
from ..dialects.request_body import check_text

_MAX_SESSION_ID = 1024
"""Characters of a session id; longer ones are truncated."""
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""Spellings of Go's strconv.ParseBool, which llm-d uses."""


def apply_header_directives(request: GenerateRequest, headers: Headers) -> GenerateRequest:
    """Apply the directives in the request's headers.

    x-dragoman-reply, x-dragoman-fault: JSON directives for scriptable engines.
    x-data-parallel-rank: the engine core that a router selected, as in vLLM.
    x-session-id: the client's session.
    x-cache-threshold-finish-reason: whether the request must end as if too little of it
        were cached, as in llm-d-inference-sim.
    """
    reply = headers.get("x-dragoman-reply")
    fault = headers.get("x-dragoman-fault")
    rank = headers.get("x-data-parallel-rank")
    session = headers.get("x-session-id")
    ends = headers.get("x-cache-threshold-finish-reason", "") in _TRUE
    if reply is None and fault is None and rank is None and session is None and not ends:
        return request
    directives: dict[str, str | int] = {"cache_threshold_finish": True} if ends else {}
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
