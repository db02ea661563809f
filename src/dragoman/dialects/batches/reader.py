"""What creates files and batches."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta, Struct

from ..body import Body, Shape, echo, invalid, missing, one_of
from ..fields import check_metadata
from .objects import ExpiresAfter

PURPOSES = ("batch", "user_data", "assistants", "vision", "fine-tune", "evals")
_LEAST_SECONDS, _MOST_SECONDS = 3600, 2592000


class _BatchBody(Struct, frozen=True, kw_only=True):
    input_file_id: Annotated[str, Meta(min_length=1)] | None = None
    endpoint: str | None = None
    completion_window: str | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchOrder(Struct, frozen=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None
    output_expires_after: ExpiresAfter | None
    unknown: tuple[str, ...]


_SHAPE = Shape(_BatchBody)


def read_batch_order(data: bytes, endpoints: Collection[str]) -> BatchOrder:
    """endpoints: those that this server has. Raises RequestError."""
    body = Body(data)
    said = body.read(_SHAPE)
    for name in ("input_file_id", "endpoint", "completion_window"):
        if getattr(said, name) is None:
            raise missing(name)
    assert said.input_file_id is not None
    assert said.endpoint is not None
    assert said.completion_window is not None
    one_of(said.endpoint, endpoints, "endpoint")
    one_of(said.completion_window, ("24h",), "completion_window")
    check_metadata(said.metadata)
    if said.output_expires_after is not None:
        expiry_seconds(str(said.output_expires_after.seconds), "output_expires_after")
    return BatchOrder(
        said.input_file_id,
        said.endpoint,
        said.completion_window,
        said.metadata,
        said.output_expires_after,
        tuple(body.others(_SHAPE.names)),
    )


def purpose_of(said: str | None) -> str:
    """Raises RequestError."""
    if said is None:
        raise missing("purpose")
    return one_of(said, PURPOSES, "purpose")


def expiry_seconds(said: str, param: str = "expires_after") -> int:
    """Raises RequestError unless it is a number of seconds between an hour and 30 days."""
    if not said.isdecimal() or not _LEAST_SECONDS <= int(said[:12]) <= _MOST_SECONDS:
        raise invalid(f"{param}.seconds", f"expected from {_LEAST_SECONDS} to {_MOST_SECONDS}, got {echo(said)}")
    return int(said)
