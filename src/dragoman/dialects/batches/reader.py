"""Parses the requests that create files and batches."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta, Struct

from ..body import BodySchema, ParsedBody, abbreviate, check_one_of, invalid_value, missing_parameter
from ..fields import check_metadata
from .objects import ExpiresAfter

PURPOSES = ("batch", "user_data", "assistants", "vision", "fine-tune", "evals")
_MIN_EXPIRY_SECONDS, _MAX_EXPIRY_SECONDS = 3600, 2592000


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
    """Parse a batch creation. endpoints: those that this server supports. Raises RequestError."""
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
    """Parse the expiry; from one hour to 30 days. Raises RequestError."""
    if not text.isdecimal() or not _MIN_EXPIRY_SECONDS <= int(text[:12]) <= _MAX_EXPIRY_SECONDS:
        raise invalid_value(
            f"{param}.seconds", f"expected from {_MIN_EXPIRY_SECONDS} to {_MAX_EXPIRY_SECONDS}, got {abbreviate(text)}"
        )
    return int(text)
