"""The bodies of Ollama's routes, read without a content type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...dialects.interfaces import ReaderOptions
from ..call_reading import parse_body
from ..http_request import HttpRequest

T = TypeVar("T")


NDJSON = (b"content-type", b"application/x-ndjson")


async def read_ollama_call(http: HttpRequest, read: Callable[[bytes, ReaderOptions], T]) -> T:
    """Read a body. No content type is required, because LiteLLM sends none. Raises
    RequestError.
    """
    return await parse_body(http, await http.read_json(allow_untyped=True), read)
