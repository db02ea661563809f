"""A request to an upstream, and the defaults of its fields."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ...core.errors import RequestError
from ...core.request import SamplingOptions


class UpstreamRequest(Struct, frozen=True):
    """A request to POST.

    path: relative to the base URL.
    is_versioned: whether the path is below the API's version, `/v1`.
    warnings: for the client, about changed or omitted parts of the request.
    content_type: of the body.
    """

    path: str
    body: bytes
    is_versioned: bool = True
    warnings: tuple[str, ...] = ()
    content_type: str = "application/json"


class UpstreamDefaults(Struct, frozen=True):
    """This server's defaults for fields that a request does not set."""

    sampling: SamplingOptions = SamplingOptions()
    max_tokens: int | None = None


def encode_body(body: dict[str, Any]) -> bytes:
    """Encode a body as JSON. Raises RequestError for text that is not valid Unicode."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        raise RequestError("The request contains text that is not valid Unicode.") from None
