"""The Responses API over a WebSocket: parses the client's frames, and renders events
and errors as frames.

An event is the same JSON as in a stream; a frame needs neither an `event:` line nor a
`[DONE]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Struct

from ...core.errors import Unsupported
from ..field_errors import check_one_of, invalid_value
from ..interfaces import ReaderOptions
from ..request_body import ParsedBody, read_json_value
from ..server_sent_events import DONE
from .reader import read_responses
from .responses_call import ResponsesCall

CREATE_TYPE = "response.create"
PROCESSED_TYPE = "response.processed"
_DATA_PREFIX = b"data: "


class ClientFrame(Struct, frozen=True):
    """A request in a frame.

    generate: False only fills the prefix cache for the next turn.
    """

    call: ResponsesCall
    generate: bool = True


def read_frame(
    data: bytes, options: ReaderOptions, *, now: Callable[[], int]
) -> ClientFrame | None:
    """Parse a frame; None for a notification. Raises RequestError."""
    fields = dict(ParsedBody(data).fields)
    kind = read_json_value(fields.pop("type", msgspec.Raw(b"null")), "type")
    if (
        check_one_of(kind if isinstance(kind, str) else "", (CREATE_TYPE, PROCESSED_TYPE), "type")
        == PROCESSED_TYPE
    ):
        return None
    generate = read_json_value(fields.pop("generate", msgspec.Raw(b"true")), "generate")
    if generate not in (True, False, None):
        raise invalid_value("generate", "expected a boolean")
    for name, reason in (
        ("background", "background responses are not available"),
        ("stream_id", "there is one at a time"),
    ):
        if read_json_value(fields.pop(name, msgspec.Raw(b"null")), name) not in (None, False):
            raise Unsupported(f"'{name}' is not supported on a WebSocket: {reason}.", param=name)
    # Ignored in the protocol: everything on a WebSocket is streamed.
    fields.pop("stream", None)
    responses_call = read_responses(msgspec.json.encode(fields), options, now=now)
    if generate is not False:
        return ClientFrame(responses_call)
    # A prefill has no output and is not added to the store.
    (request,) = responses_call.call.requests
    request = msgspec.structs.replace(
        request, limits=msgspec.structs.replace(request.limits, max_tokens=0)
    )
    call = msgspec.structs.replace(responses_call.call, requests=(request,))
    return ClientFrame(
        msgspec.structs.replace(responses_call, call=call, store=False), generate=False
    )


def split_frames(stream: bytes, warnings: Sequence[str] = ()) -> Iterator[bytes]:
    """Split complete events of a stream into frames.

    warnings: added to the first frame, because a frame has no headers.
    """
    for event in stream.split(b"\n\n"):
        # A keepalive after the last event is a comment, which has no data.
        start = event.find(_DATA_PREFIX)
        if start < 0 or event + b"\n\n" == DONE:
            continue
        frame = event[start + len(_DATA_PREFIX) :]
        if warnings:
            frame = b'%s,"dragoman_warnings":%s}' % (
                frame[:-1],
                msgspec.json.encode(list(warnings)),
            )
            warnings = ()
        yield frame


def render_error_frame(status: int, body: bytes, retry_after: str | None = None) -> bytes:
    """Render an error. body: the JSON of the same error over HTTP."""
    headers = (
        b"" if retry_after is None else b'"headers":{"retry-after":"%s"},' % retry_after.encode()
    )
    return b'{"type":"error","status":%d,%s%s' % (status, headers, body.removeprefix(b"{"))
