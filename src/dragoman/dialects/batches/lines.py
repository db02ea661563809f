"""The lines of a batch's files: one request each on the way in, one result each on the way out."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from ..body import echo


class BadLine(Exception):
    """A line that is no request. code: as in the errors of a batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


class Line(Struct, frozen=True):
    """A request. body: that of the endpoint, as it was written."""

    custom_id: str
    body: bytes
    model: str | None


class _Line(Struct, frozen=True):
    custom_id: str
    method: str
    url: str
    body: Raw


class _Asked(Struct, frozen=True):
    model: object = None
    stream: object = None


_line = msgspec.json.Decoder(_Line)
_asked = msgspec.json.Decoder(_Asked)

MAX_CUSTOM_ID = 512


def read_line(data: bytes, endpoint: str) -> Line:
    """Raises BadLine."""
    try:
        line = _line.decode(data)
        asked = _asked.decode(line.body)
    except msgspec.ValidationError as error:
        raise BadLine("invalid_request", f"This line is not a request: {error}.") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise BadLine("invalid_json_line", "This line is not parseable as valid JSON.") from None
    if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID or "\0" in line.custom_id:
        raise BadLine("invalid_custom_id", f"`custom_id` must have 1 to {MAX_CUSTOM_ID} characters.", "custom_id")
    if line.method != "POST":
        raise BadLine("invalid_method", f"`method` must be 'POST', not {echo(line.method)}.", "method")
    if line.url != endpoint:
        raise BadLine("invalid_url", f"`url` must be the batch's endpoint {endpoint}, not {echo(line.url)}.", "url")
    if asked.stream not in (None, False):
        raise BadLine("invalid_request", "Streaming is not supported in a batch.", "body.stream")
    return Line(line.custom_id, bytes(line.body), asked.model if isinstance(asked.model, str) else None)


class _Response(Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw


class _Error(Struct, frozen=True):
    code: str
    message: str


class _Result(Struct, frozen=True):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


def result_line(id: str, custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """A request that was answered, well or badly."""
    return msgspec.json.encode(_Result(id, custom_id, _Response(status, request_id, Raw(body)), None)) + b"\n"


def answer_in(line: bytes) -> bytes:
    """The body of a request that was answered."""
    response = msgspec.json.decode(line, type=_Result).response
    assert response is not None, "only completed lines have a response"
    return bytes(response.body)


def unexecuted_line(id: str, custom_id: str, code: str, message: str) -> bytes:
    """A request that got no answer."""
    return msgspec.json.encode(_Result(id, custom_id, None, _Error(code, message))) + b"\n"
