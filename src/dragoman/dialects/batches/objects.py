"""The objects `file` and `batch` as OpenAI has them (openai SDK 3.x, types/file_object.py and types/batch.py)."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class File(Struct, frozen=True, kw_only=True):
    """bytes: its size. expires_at, created_at: Unix seconds. mime_type: as it was uploaded by Anthropic's API, which
    tells it.
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
    """line: of the input file, from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Errors(Struct, frozen=True):
    data: tuple[BatchError, ...]
    object: str = "list"


class Counts(Struct, frozen=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class _InputDetails(Struct, frozen=True):
    cached_tokens: int = 0


class _OutputDetails(Struct, frozen=True):
    reasoning_tokens: int = 0


class Usage(Struct, frozen=True):
    """Tokens of all answers together."""

    input_tokens: int = 0
    input_tokens_details: _InputDetails = _InputDetails()
    output_tokens: int = 0
    output_tokens_details: _OutputDetails = _OutputDetails()
    total_tokens: int = 0

    def plus(self, other: Usage) -> Usage:
        cached = self.input_tokens_details.cached_tokens + other.input_tokens_details.cached_tokens
        reasoning = self.output_tokens_details.reasoning_tokens + other.output_tokens_details.reasoning_tokens
        return Usage(
            self.input_tokens + other.input_tokens,
            _InputDetails(cached),
            self.output_tokens + other.output_tokens,
            _OutputDetails(reasoning),
            self.total_tokens + other.total_tokens,
        )


class ExpiresAfter(Struct, frozen=True):
    anchor: Literal["created_at"]
    seconds: int


class Batch(Struct, frozen=True, kw_only=True):
    """All times are Unix seconds. model: of the first request. output_expires_after: of the files that it makes."""

    id: str
    completion_window: str
    created_at: int
    endpoint: str
    input_file_id: str
    expires_at: int
    object: str = "batch"
    status: Status = "validating"
    model: str | None = None
    errors: Errors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = Counts()
    usage: Usage | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class Deleted(Struct, frozen=True):
    id: str
    object: str
    deleted: bool = True


def deleted(id: str, object: str) -> bytes:
    return msgspec.json.encode(Deleted(id, object))


class _Details(Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _AnyUsage(Struct, frozen=True):
    """Of any endpoint: Responses counts input and output, the others prompt and completion."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Answered(Struct, frozen=True):
    usage: _AnyUsage | None = None


_answered = msgspec.json.Decoder(_Answered)


def usage_of(answer: bytes) -> Usage:
    """What an answer of any endpoint has used."""
    used = _answered.decode(answer).usage or _AnyUsage()
    given = used.input_tokens or used.prompt_tokens or 0
    made = used.output_tokens or used.completion_tokens or 0
    of_given = used.input_tokens_details or used.prompt_tokens_details or _Details()
    of_made = used.output_tokens_details or used.completion_tokens_details or _Details()
    return Usage(
        given,
        _InputDetails(of_given.cached_tokens or 0),
        made,
        _OutputDetails(of_made.reasoning_tokens or 0),
        given + made,
    )
