"""OpenAI's batches: the request that creates one, the object, its usage.

The objects follow the openai SDK 3.x (types/batch.py).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from .field_errors import check_one_of, missing_parameter
from .generation_fields import check_metadata
from .openai_files import read_expiry_seconds
from .request_body import BodySchema, ParsedBody

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
