"""Removal of secrets from what is recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode

from ..core.json_types import JsonValue
from .cassette import HeaderList

RECORDED_REQUEST_HEADERS = frozenset(
    {"accept", "content-type", "content-encoding", "user-agent", "anthropic-version",
    "anthropic-beta", "openai-beta",
     "x-request-id", "x-stainless-lang", "x-stainless-package-version"}
)  # fmt: skip
"""Request headers that are recorded. An allowlist, because API keys are sent under many
names.
"""


RECORDED_RESPONSE_HEADERS = frozenset(
    {"content-type", "content-length", "content-encoding", "content-language", "cache-control",
    "date", "vary", "server", "retry-after", "retry-after-ms", "request-id", "x-request-id",
    "x-should-retry", "x-accel-buffering", "openai-processing-ms", "openai-version",
    "x-dragoman-warnings", "x-dragoman-support", "x-dragoman-timeout"}
)  # fmt: skip
"""Response headers that are recorded, besides counts. An allowlist, because sessions,
signed URLs and accounts have many names too.
"""


_COUNT_HEADER = re.compile(r"[a-z-]*ratelimit-[a-z-]+|[a-z-]+-tokens")
"""Names of counts that clients use, such as `x-ratelimit-remaining-tokens`."""


_COUNT = re.compile(r"\d[\w.:+ -]{0,31}")
"""A number, a duration or a time: `9`, `6m0s`, `2026-11-28T00:00:00Z`."""


RECORDED_QUERY_PARAMETERS = frozenset(
    {"after", "alt", "api-version", "before", "beta", "include", "include[]", "limit",
    "model", "offset", "order", "page", "page_size", "purpose", "starting_after", "stream"}
)  # fmt: skip
"""Query parameters that are recorded with their values."""


RESPONSE_SECRETS = frozenset({"clientsecret", "accesstoken", "refreshtoken", "idtoken"})
"""Fields of JSON responses that are recorded without their strings, in lower case
without `_` and `-`.
"""


REQUEST_SECRETS = RESPONSE_SECRETS | frozenset(
    {"authorization", "authorizationtoken", "authtoken", "bearertoken", "apikey", "secretkey",
    "privatekey", "password", "headers"}
)  # fmt: skip
"""The same for requests, such as the keys of MCP servers in `tools`."""


_SECRET_WORD = re.compile(rb"auth|token|key|secret|password|headers|\\u00", re.IGNORECASE)


def filter_request_headers(raw: Iterable[tuple[str, str]]) -> HeaderList:
    """Return the headers of a request that are recorded."""
    return [(name, value) for name, value in raw if name.lower() in RECORDED_REQUEST_HEADERS]


def filter_response_headers(raw: Iterable[tuple[str, str]]) -> HeaderList:
    """Return the headers of a response that are recorded."""

    def is_recorded(name: str, value: str) -> bool:
        is_count = _COUNT_HEADER.fullmatch(name) and _COUNT.fullmatch(value)
        return name in RECORDED_RESPONSE_HEADERS or is_count is not None

    return [(name, value) for name, value in raw if is_recorded(name.lower(), value)]


def redact_query(query: str) -> str:
    """Return the query with the values of `RECORDED_QUERY_PARAMETERS` only."""
    # Bytes that are no UTF-8 stay what they are.
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    return urlencode(
        [(name, value if name in RECORDED_QUERY_PARAMETERS else "") for name, value in pairs],
        errors="surrogateescape",
    )


def redact_body(body: bytes, fields: frozenset[str] = REQUEST_SECRETS) -> bytes:
    """Return a JSON body without the strings in these fields; any other body, and one
    without such fields, unchanged.
    """
    # Most bodies have none, and are not parsed.
    if not _SECRET_WORD.search(body):
        return body
    try:
        value = json.loads(body)
        redacted = _redact(value, fields, is_secret=False)
    except ValueError:
        return body
    except RecursionError:
        # What it contains is not known.
        return b""
    return body if redacted == value else json.dumps(redacted, separators=(",", ":")).encode()


def _redact(value: JsonValue, fields: frozenset[str], *, is_secret: bool) -> JsonValue:
    """Return the value without the strings of secret fields.

    is_secret: whether the value is in such a field.
    """
    match value:
        case str():
            return "" if is_secret else value
        case list():
            return [_redact(item, fields, is_secret=is_secret) for item in value]
        case dict():
            return {
                name: _redact_properties(item, fields)
                if name == "properties" and not is_secret
                else _redact(item, fields, is_secret=is_secret or _normalize(name) in fields)
                for name, item in value.items()
            }
        case _:
            return value


def _redact_properties(value: JsonValue, fields: frozenset[str]) -> JsonValue:
    """Redact the `properties` of a JSON Schema, whose names hold no values."""
    if not isinstance(value, dict):
        return _redact(value, fields, is_secret=False)
    return {name: _redact(item, fields, is_secret=False) for name, item in value.items()}


def _normalize(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
