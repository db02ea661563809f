"""Removal of secrets from what is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode

from .cassette import HeaderList

RECORDED_REQUEST_HEADERS = frozenset(
    {"accept", "content-type", "content-encoding", "user-agent", "anthropic-version",
    "anthropic-beta", "openai-beta",
     "x-request-id", "x-stainless-lang", "x-stainless-package-version"}
)  # fmt: skip
"""Request headers that are recorded. An allowlist, because API keys are sent under many
names.
"""


OMITTED_HEADER_WORDS = (
    "authorization",
    "cookie",
    "token",
    "secret",
    "api-key",
    "apikey",
    "organization",
    "project",
)
"""Response headers whose names contain any of these words are not recorded, except
counts.
"""


SECRET_QUERY_WORDS = ("key", "token", "secret", "sig", "auth", "password", "credential")
"""Query parameters whose names contain any of these words are recorded without their
values.
"""


def filter_request_headers(raw: Iterable[tuple[str, str]]) -> HeaderList:
    """Return the headers of a request that are recorded."""
    return [(name, value) for name, value in raw if name.lower() in RECORDED_REQUEST_HEADERS]


def filter_response_headers(raw: Iterable[tuple[str, str]]) -> HeaderList:
    """Return the headers of a response that are recorded."""

    def is_recorded(name: str) -> bool:
        # Counts of tokens, such as x-ratelimit-remaining-tokens, are no secrets, and
        # clients use them.
        is_count = "ratelimit" in name or name.endswith("tokens")
        return is_count or not any(word in name for word in OMITTED_HEADER_WORDS)

    return [(name, value) for name, value in raw if is_recorded(name.lower())]


def redact_query(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode(
        [
            (name, "" if any(word in name.lower() for word in SECRET_QUERY_WORDS) else value)
            for name, value in pairs
        ]
    )
