"""Responses on a WebSocket: what a client's frame asks for, and the frames that answers and errors become.

An event is the same JSON as in a stream; a frame needs neither its name on a line before it nor a `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Struct

from ...core.errors import Unsupported
from ...core.request import GenerateRequest
from ..base import ReaderOptions
from ..body import Body, invalid, json_value, one_of
from ..envelope import DONE
from .call import ResponsesCall
from .reader import read_responses

CREATE, PROCESSED = "response.create", "response.processed"
_DATA = b"data: "


class Wish(Struct, frozen=True):
    """generate: False prepares for what follows: the prompt is computed, and remembered under an id."""

    asked: ResponsesCall
    generate: bool = True


def read_frame(data: bytes, options: ReaderOptions, *, now: Callable[[], int]) -> Wish | None:
    """None for what a client merely tells. Raises RequestError."""
    fields = dict(Body(data).fields)
    kind = json_value(fields.pop("type", msgspec.Raw(b"null")), "type")
    if one_of(kind if isinstance(kind, str) else "", (CREATE, PROCESSED), "type") == PROCESSED:
        return None
    generate = json_value(fields.pop("generate", msgspec.Raw(b"true")), "generate")
    if generate not in (True, False, None):
        raise invalid("generate", "expected a boolean")
    for name, why in (
        ("background", "background responses are not available"),
        ("stream_id", "there is one at a time"),
    ):
        if json_value(fields.pop(name, msgspec.Raw(b"null")), name) not in (None, False):
            raise Unsupported(f"'{name}' is not supported on a WebSocket: {why}.", param=name)
    fields.pop("stream", None)
    asked = read_responses(msgspec.json.encode(fields), options, now=now)
    return Wish(asked) if generate is not False else Wish(_silent(asked), generate=False)


def _silent(asked: ResponsesCall) -> ResponsesCall:
    """It says nothing, and nothing of it is stored."""

    def without_answer(request: GenerateRequest) -> GenerateRequest:
        return msgspec.structs.replace(request, limits=msgspec.structs.replace(request.limits, max_tokens=0))

    call = msgspec.structs.replace(asked.call, requests=tuple(map(without_answer, asked.call.requests)))
    return msgspec.structs.replace(asked, call=call, store=False)


def frames(said: bytes, warnings: Sequence[str] = ()) -> Iterator[bytes]:
    """The frames of whole events of a stream. warnings: for the first of them; there are no headers to tell them in."""
    for event in said.split(b"\n\n"):
        at = event.find(_DATA)
        if at < 0 or event + b"\n\n" == DONE:
            continue
        frame = event[at + len(_DATA) :]
        if warnings:
            frame = b'%s,"dragoman_warnings":%s}' % (frame[:-1], msgspec.json.encode(list(warnings)))
            warnings = ()
        yield frame


def error_frame(status: int, body: bytes, retry_after: str | None = None) -> bytes:
    """body: the JSON of the same error over HTTP."""
    headers = b"" if retry_after is None else b'"headers":{"retry-after":"%s"},' % retry_after.encode()
    return b'{"type":"error","status":%d,%s%s' % (status, headers, body.removeprefix(b"{"))
