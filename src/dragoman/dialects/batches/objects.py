"""OpenAI's `file` and `batch` objects (openai SDK 3.x, types/file_object.py and types/batch.py)."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class FileObject(Struct, frozen=True, kw_only=True):
    """A file.

    bytes: its size.
    created_at, expires_at: Unix seconds.
    mime_type: for files uploaded through Anthropic's API, which returns it.
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
    """Tokens of all answers together."""

    input_tokens: int = 0
    input_tokens_details: BatchInputDetails = BatchInputDetails()
    output_tokens: int = 0
    output_tokens_details: BatchOutputDetails = BatchOutputDetails()
    total_tokens: int = 0

    def add(self, other: BatchUsage) -> BatchUsage:
        cached = self.input_tokens_details.cached_tokens + other.input_tokens_details.cached_tokens
        reasoning = self.output_tokens_details.reasoning_tokens + other.output_tokens_details.reasoning_tokens
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

    model: of the first request.
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
    """The usage of any endpoint: Responses counts input and output, the others prompt and completion."""

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
    """The usage in an answer of any endpoint."""
    usage = _answer_decoder.decode(answer).usage or _AnyUsage()
    # Responses and Chat Completions name the counts differently.
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
