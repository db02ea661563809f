"""The lines of OpenAI's batch files.

An input file has one request in each line, an output file one result.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from .field_errors import abbreviate


class InvalidBatchLine(Exception):
    """A line of a batch's input is invalid.

    code, message, param: as in BatchError.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class BatchLine(Struct, frozen=True):
    """One request of a batch.

    body: the request body for the endpoint, unchanged.
    model: the body's `model`; None if it has none.
    """

    custom_id: str
    body: bytes
    model: str | None


class _LineBody(Struct, frozen=True):
    custom_id: str
    method: str
    url: str
    body: Raw


class _RequestFields(Struct, frozen=True):
    model: object = None
    stream: object = None


_line_decoder = msgspec.json.Decoder(_LineBody)


_request_decoder = msgspec.json.Decoder(_RequestFields)


MAX_CUSTOM_ID = 512


def read_line(data: bytes, endpoint: str) -> BatchLine:
    """Parse one line of a batch's input. Raises InvalidBatchLine."""
    try:
        line = _line_decoder.decode(data)
        request = _request_decoder.decode(line.body)
    # ValidationError is a MsgspecError too, so it must be handled first: the line is
    # JSON of the wrong shape.
    except msgspec.ValidationError as error:
        raise InvalidBatchLine("invalid_request", f"This line is not a request: {error}.") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise InvalidBatchLine(
            "invalid_json_line", "This line is not parseable as valid JSON."
        ) from None
    if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID or "\0" in line.custom_id:
        raise InvalidBatchLine(
            "invalid_custom_id",
            f"`custom_id` must have 1 to {MAX_CUSTOM_ID} characters.",
            "custom_id",
        )
    if line.method != "POST":
        raise InvalidBatchLine(
            "invalid_method", f"`method` must be 'POST', not {abbreviate(line.method)}.", "method"
        )
    if line.url != endpoint:
        raise InvalidBatchLine(
            "invalid_url",
            f"`url` must be the batch's endpoint {endpoint}, not {abbreviate(line.url)}.",
            "url",
        )
    if request.stream not in (None, False):
        raise InvalidBatchLine(
            "invalid_request", "Streaming is not supported in a batch.", "body.stream"
        )
    return BatchLine(
        line.custom_id, bytes(line.body), request.model if isinstance(request.model, str) else None
    )


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


def encode_result_line(id: str, custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """Encode the result of a request that was executed, whatever its status."""
    return (
        msgspec.json.encode(_Result(id, custom_id, _Response(status, request_id, Raw(body)), None))
        + b"\n"
    )


def read_answer(line: bytes) -> bytes:
    """Return the response body in the result line of a request that was executed."""
    response = msgspec.json.decode(line, type=_Result).response
    assert response is not None, "only completed lines have a response"
    return bytes(response.body)


def encode_unexecuted_line(id: str, custom_id: str, code: str, message: str) -> bytes:
    """Encode the result of a request that was not executed."""
    return msgspec.json.encode(_Result(id, custom_id, None, _Error(code, message))) + b"\n"
