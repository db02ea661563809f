"""Anthropic's message batches: the request that creates one, the object, lists."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from ...core.errors import RequestError, Unsupported
from ..field_errors import abbreviate, invalid_value, missing_parameter
from ..request_body import BodySchema, ParsedBody

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
    mcp_servers: object = None


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
        # Requests of a batch are stored, and these contain tokens.
        if parsed.mcp_servers not in (None, []):
            raise Unsupported(
                f"'{path}.mcp_servers' is not supported in a batch, where calls of tools could be "
                "made twice.",
                param=f"{path}.mcp_servers",
            )
    return tuple(
        MessageBatchRequest(entry.custom_id, bytes(entry.params)) for entry in requests
    ), tuple(body.find_other_fields(_CREATE.names))


def format_timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def render_deleted_batch(id: str) -> bytes:
    return msgspec.json.encode({"id": id, "type": "message_batch_deleted"})


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
