"""OpenAI's files and batches: request bodies, objects, and the lines of batch files.

The objects follow the openai SDK 3.x (types/file_object.py and types/batch.py). An
input file has one request in each line, an output file one result.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .body import (
    BodySchema,
    ParsedBody,
    abbreviate,
    check_one_of,
    invalid_value,
    missing_parameter,
    parse_digits,
)
from .fields import check_metadata

BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]


class FileObject(Struct, frozen=True, kw_only=True):
    """A file.

    bytes: size in bytes.
    created_at, expires_at: Unix seconds.
    mime_type: only for files uploaded through Anthropic's API, which returns it.
    """

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    object: str = "file"
    status: str = "processed"
    status_details: str | None = None
    mime_type: str | UnsetType = UNSET


class BatchError(Struct, frozen=True, kw_only=True):
    """An error in a batch's input.

    line: line number in the input file, from 1.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(Struct, frozen=True):
    data: tuple[BatchError, ...]
    object: str = "list"


class BatchCounts(Struct, frozen=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchInputDetails(Struct, frozen=True):
    cached_tokens: int = 0


class BatchOutputDetails(Struct, frozen=True):
    reasoning_tokens: int = 0


class BatchUsage(Struct, frozen=True):
    """The token counts of all answers together."""

    input_tokens: int = 0
    input_tokens_details: BatchInputDetails = BatchInputDetails()
    output_tokens: int = 0
    output_tokens_details: BatchOutputDetails = BatchOutputDetails()
    total_tokens: int = 0

    def add(self, other: BatchUsage) -> BatchUsage:
        cached = self.input_tokens_details.cached_tokens + other.input_tokens_details.cached_tokens
        reasoning = (
            self.output_tokens_details.reasoning_tokens
            + other.output_tokens_details.reasoning_tokens
        )
        return BatchUsage(
            self.input_tokens + other.input_tokens,
            BatchInputDetails(cached),
            self.output_tokens + other.output_tokens,
            BatchOutputDetails(reasoning),
            self.total_tokens + other.total_tokens,
        )


class ExpiresAfter(Struct, frozen=True):
    anchor: Literal["created_at"]
    seconds: int


class BatchObject(Struct, frozen=True, kw_only=True):
    """A batch. All times are Unix seconds.

    model: model of the first request.
    output_expires_after: expiry of the files that the batch creates.
    """

    id: str
    completion_window: str
    created_at: int
    endpoint: str
    input_file_id: str
    expires_at: int
    object: str = "batch"
    status: BatchStatus = "validating"
    model: str | None = None
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchCounts = BatchCounts()
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class DeletedObject(Struct, frozen=True):
    id: str
    object: str
    deleted: bool = True


def render_deleted(id: str, object: str) -> bytes:
    return msgspec.json.encode(DeletedObject(id, object))


class _Details(Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _AnyUsage(Struct, frozen=True):
    """The usage of any endpoint: Responses reports input and output tokens, the others
    prompt and completion tokens.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _AnswerFields(Struct, frozen=True):
    usage: _AnyUsage | None = None


_answer_decoder = msgspec.json.Decoder(_AnswerFields)


def read_usage(answer: bytes) -> BatchUsage:
    """Parse the usage in an answer of any endpoint."""
    usage = _answer_decoder.decode(answer).usage or _AnyUsage()
    input_tokens = usage.input_tokens or usage.prompt_tokens or 0
    output_tokens = usage.output_tokens or usage.completion_tokens or 0
    input_details = usage.input_tokens_details or usage.prompt_tokens_details or _Details()
    output_details = usage.output_tokens_details or usage.completion_tokens_details or _Details()
    return BatchUsage(
        input_tokens,
        BatchInputDetails(input_details.cached_tokens or 0),
        output_tokens,
        BatchOutputDetails(output_details.reasoning_tokens or 0),
        input_tokens + output_tokens,
    )


# The lines of batch files.


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


# Creating files and batches.

PURPOSES = ("batch", "user_data", "assistants", "vision", "fine-tune", "evals")
_MIN_EXPIRY_SECONDS = 3600
_MAX_EXPIRY_SECONDS = 2592000
"""One hour, and 30 days."""


class BatchBody(Struct, frozen=True, kw_only=True):
    input_file_id: Annotated[str, Meta(min_length=1)] | None = None
    endpoint: str | None = None
    completion_window: str | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchRequest(Struct, frozen=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None
    output_expires_after: ExpiresAfter | None
    unknown: tuple[str, ...]


_SCHEMA = BodySchema(BatchBody)


def read_batch_request(data: bytes, endpoints: Collection[str]) -> BatchRequest:
    """Parse the creation of a batch. Raises RequestError.

    endpoints: the endpoints that this server supports in batches.
    """
    body = ParsedBody(data)
    batch_body = body.decode(_SCHEMA)
    for name in ("input_file_id", "endpoint", "completion_window"):
        if getattr(batch_body, name) is None:
            raise missing_parameter(name)
    assert batch_body.input_file_id is not None
    assert batch_body.endpoint is not None
    assert batch_body.completion_window is not None
    check_one_of(batch_body.endpoint, endpoints, "endpoint")
    check_one_of(batch_body.completion_window, ("24h",), "completion_window")
    check_metadata(batch_body.metadata)
    if batch_body.output_expires_after is not None:
        read_expiry_seconds(str(batch_body.output_expires_after.seconds), "output_expires_after")
    return BatchRequest(
        batch_body.input_file_id,
        batch_body.endpoint,
        batch_body.completion_window,
        batch_body.metadata,
        batch_body.output_expires_after,
        tuple(body.find_other_fields(_SCHEMA.names)),
    )


def read_purpose(purpose: str | None) -> str:
    """Parse a file's purpose. Raises RequestError."""
    if purpose is None:
        raise missing_parameter("purpose")
    return check_one_of(purpose, PURPOSES, "purpose")


def read_expiry_seconds(text: str, param: str = "expires_after") -> int:
    """Parse the seconds until expiry, from one hour to 30 days. Raises RequestError."""
    seconds = parse_digits(text, 12)
    if seconds is None or not _MIN_EXPIRY_SECONDS <= seconds <= _MAX_EXPIRY_SECONDS:
        raise invalid_value(
            f"{param}.seconds",
            f"expected from {_MIN_EXPIRY_SECONDS} to {_MAX_EXPIRY_SECONDS}, got {abbreviate(text)}",
        )
    return seconds
