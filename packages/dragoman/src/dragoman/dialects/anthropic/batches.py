"""Anthropic's message batches and files: parses requests, and serializes objects, lists
and results.

The metadata, upload parameters and lists of files follow the anthropic SDK 2.x,
types/file_metadata.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from ...core.errors import RequestError
from ..body import (
    BodySchema,
    ParsedBody,
    abbreviate,
    invalid_value,
    missing_parameter,
    parse_digits,
)

# Anthropic's limit of a batch, in addition to 256 MB.
MAX_REQUESTS = 100_000
MessageBatchStatus = Literal["in_progress", "canceling", "ended"]
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


class MessageBatchCounts(Struct, frozen=True):
    """The counts of a batch. All requests count as processing until the whole batch has
    ended.
    """

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(Struct, frozen=True, kw_only=True):
    """A message batch. Times are RFC 3339.

    results_url: path without a host, which clients resolve against the server's
        address.
    """

    id: str
    type: str = "message_batch"
    processing_status: MessageBatchStatus = "in_progress"
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None = None
    cancel_initiated_at: str | None = None
    archived_at: str | None = None
    results_url: str | None = None


class MessageBatchRequest(Struct, frozen=True):
    """One request of a batch.

    params: a Messages body.
    """

    custom_id: str
    params: bytes


class MessageBatchEntry(Struct, frozen=True):
    custom_id: str
    params: Raw


class MessageBatchBody(Struct, frozen=True):
    requests: list[MessageBatchEntry] | None = None


class _Params(Struct, frozen=True):
    stream: object = None


_CREATE = BodySchema(MessageBatchBody)
_params_decoder = msgspec.json.Decoder(_Params)


def read_message_batch(data: bytes) -> tuple[tuple[MessageBatchRequest, ...], tuple[str, ...]]:
    """Parse the creation of a batch into its requests and the names of unknown fields.
    Raises RequestError.
    """
    body = ParsedBody(data)
    requests = body.decode(_CREATE).requests
    if requests is None:
        raise missing_parameter("requests")
    if not 0 < len(requests) <= MAX_REQUESTS:
        raise invalid_value(
            "requests", f"expected 1 to {MAX_REQUESTS} requests, got {len(requests)}"
        )
    custom_ids: set[str] = set()
    for i, request in enumerate(requests):
        if _CUSTOM_ID.fullmatch(request.custom_id) is None:
            raise invalid_value(
                f"requests[{i}].custom_id", "expected 1 to 64 letters, digits, `_` and `-`"
            )
        if request.custom_id in custom_ids:
            raise invalid_value(
                f"requests[{i}].custom_id", f"{abbreviate(request.custom_id)} was used before"
            )
        custom_ids.add(request.custom_id)
        # Other errors in `params` become the result of the request.
        path = f"requests[{i}].params"
        try:
            parsed = _params_decoder.decode(request.params)
        except msgspec.ValidationError:
            raise RequestError(
                f"Invalid type for '{path}': expected an object.", param=path, code="invalid_type"
            ) from None
        # Results are complete messages; a client that sets `stream` expects events that
        # it would never get.
        if parsed.stream not in (None, False):
            raise invalid_value(f"{path}.stream", "streaming is not supported in a batch")
    return tuple(
        MessageBatchRequest(entry.custom_id, bytes(entry.params)) for entry in requests
    ), tuple(body.find_other_fields(_CREATE.names))


class SucceededResult(Struct, frozen=True, tag_field="type", tag="succeeded"):
    message: Raw


class ErroredResult(Struct, frozen=True, tag_field="type", tag="errored"):
    error: Raw


class CanceledResult(Struct, frozen=True, tag_field="type", tag="canceled"):
    pass


class ExpiredResult(Struct, frozen=True, tag_field="type", tag="expired"):
    pass


class MessageBatchResult(Struct, frozen=True):
    custom_id: str
    result: SucceededResult | ErroredResult | CanceledResult | ExpiredResult


_result_decoder = msgspec.json.Decoder(MessageBatchResult)


def encode_result(custom_id: str, status: int, body: bytes) -> bytes:
    """Encode one line of the results.

    status: HTTP status of the response.
    body: a message, or the error envelope.
    """
    result = SucceededResult(Raw(body)) if status < 400 else ErroredResult(Raw(body))
    return msgspec.json.encode(MessageBatchResult(custom_id, result)) + b"\n"


def encode_missing_result(custom_id: str, *, canceled: bool) -> bytes:
    return (
        msgspec.json.encode(
            MessageBatchResult(custom_id, CanceledResult() if canceled else ExpiredResult())
        )
        + b"\n"
    )


def count_result(counts: MessageBatchCounts, line: bytes) -> MessageBatchCounts:
    """Return the counts with one more result, a line of the results file."""
    match _result_decoder.decode(line).result:
        case SucceededResult():
            return msgspec.structs.replace(counts, succeeded=counts.succeeded + 1)
        case ErroredResult():
            return msgspec.structs.replace(counts, errored=counts.errored + 1)
        case CanceledResult():
            return msgspec.structs.replace(counts, canceled=counts.canceled + 1)
        case ExpiredResult():
            return msgspec.structs.replace(counts, expired=counts.expired + 1)


def format_timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def render_deleted_batch(id: str) -> bytes:
    return msgspec.json.encode({"id": id, "type": "message_batch_deleted"})


class CursorQuery(Struct, frozen=True):
    """The query parameters of a list, newest first.

    limit: maximum rows.
    after, before: id of the row before or after the requested ones.
    """

    limit: int
    after: str | None
    before: str | None


def read_cursor_query(limit: str | None, after: str | None, before: str | None) -> CursorQuery:
    """Parse the query parameters of a list. Raises RequestError."""
    text = "20" if limit is None else limit
    number = parse_digits(text, 9)
    if number is None or not 1 <= number <= 1000:
        raise invalid_value("limit", f"expected an integer from 1 to 1000, got {abbreviate(text)}")
    if after and before:
        raise invalid_value("before_id", "it cannot be combined with `after_id`")
    return CursorQuery(number, after or None, before or None)


class MessageBatchPage(Struct, frozen=True):
    data: list[Raw]
    has_more: bool
    first_id: str | None
    last_id: str | None


def render_batch_list(rows: list[tuple[str, bytes]], *, has_more: bool) -> bytes:
    first, last = (rows[0][0], rows[-1][0]) if rows else (None, None)
    return msgspec.json.encode(
        MessageBatchPage([Raw(row) for _, row in rows], has_more, first, last)
    )


# Files.

_MIN_EXPIRY_SECONDS = 3600
_MAX_EXPIRY_SECONDS = 7776000
"""One hour, and 90 days."""
_MAX_IDS = 100
_CURSOR_PREFIX = "page_"


class FileMetadata(Struct, frozen=True, kw_only=True):
    """The metadata of a file. Times are RFC 3339."""

    id: str
    type: str = "file"
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str | None = None
    downloadable: bool = True


class FilePage(Struct, frozen=True):
    data: list[Raw]
    has_more: bool
    first_id: str | None
    last_id: str | None
    next_page: str | None


def is_anthropic_request(headers: Mapping[str, str]) -> bool:
    """Whether a request to a path that OpenAI shares is Anthropic's: its clients always
    send `anthropic-version`.
    """
    return "anthropic-version" in headers


def read_expiry_seconds(text: str | None) -> int | None:
    """Parse `expires_in_seconds`, which is from one hour to 90 days. Raises
    RequestError.
    """
    if text is None:
        return None
    seconds = parse_digits(text, 12)
    if seconds is None or not _MIN_EXPIRY_SECONDS <= seconds <= _MAX_EXPIRY_SECONDS:
        raise invalid_value(
            "expires_in_seconds",
            f"expected from {_MIN_EXPIRY_SECONDS} to {_MAX_EXPIRY_SECONDS}, got {abbreviate(text)}",
        )
    return seconds


def read_file_page_query(query: Mapping[str, str]) -> CursorQuery:
    """Parse the query of a list of files. Raises RequestError.

    Current SDKs send a cursor (`page`), older ones ids (`after_id`, `before_id`).
    """
    page = query.get("page")
    after = query.get("after_id")
    if page is not None:
        if after or query.get("before_id"):
            raise invalid_value("page", "it cannot be combined with `after_id` and `before_id`")
        # The cursor is the id of the last row with a prefix, so no cursors have to be
        # stored.
        after = page.removeprefix(_CURSOR_PREFIX)
    return read_cursor_query(query.get("limit"), after, query.get("before_id"))


def select_ids(ids: Sequence[str], query: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids to list, without duplicates. Raises RequestError."""
    selected = tuple(dict.fromkeys(ids))
    if len(selected) > _MAX_IDS:
        raise invalid_value("ids", f"expected at most {_MAX_IDS}, got {len(selected)}")
    if selected and ("page" in query or "limit" in query):
        raise invalid_value("ids", "it cannot be combined with `page` and `limit`")
    return selected


def render_file_list(rows: Sequence[FileMetadata], *, has_more: bool) -> bytes:
    first, last = (rows[0].id, rows[-1].id) if rows else (None, None)
    data = [Raw(msgspec.json.encode(row)) for row in rows]
    return msgspec.json.encode(
        FilePage(data, has_more, first, last, f"{_CURSOR_PREFIX}{last}" if has_more else None)
    )


def render_deleted_file(id: str) -> bytes:
    return msgspec.json.encode({"id": id, "type": "file_deleted"})
