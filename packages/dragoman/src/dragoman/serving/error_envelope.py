"""Error envelopes: each dialect's format of an error response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import (
    DragomanError,
)
from ..dialects.anthropic import map_anthropic_status, render_anthropic_error
from ..dialects.anthropic.files import is_anthropic_request
from ..dialects.interfaces import Profile
from ..dialects.ollama import render_ollama_error
from ..dialects.openai_errors import render_openai_error
from ..dialects.rate_limit_headers import (
    RateLimitState,
    render_anthropic_rate_limits,
    render_openai_rate_limits,
)
from ..dialects.responses import render_responses_error
from ..dialects.tgi import map_tgi_status, render_tgi_error
from .responder import RawHeaders


class ErrorEnvelope(Struct, frozen=True):
    """A dialect's error format.

    name: the name in the docs.
    render: renders the body from an error, the request's id and the server's profile.
    map_status: maps an error to the dialect's HTTP status.
    anthropic: the envelope for requests of Anthropic's clients, on paths that both
        vendors have.
    render_rate_limits: renders the headers that report the limits of a key, at a Unix
        time.
    """

    name: str
    render: Callable[[DragomanError, str, Profile], bytes]
    map_status: Callable[[DragomanError], int]
    anthropic: ErrorEnvelope | None = None
    render_rate_limits: Callable[[Sequence[RateLimitState], float], RawHeaders] = (
        render_openai_rate_limits
    )

    def resolve(self, headers: Mapping[str, str]) -> ErrorEnvelope:
        """Return the envelope for a request with these headers."""
        # Anthropic's SDKs send `anthropic-version` with every request, and OpenAI's
        # never do.
        return (
            self if self.anthropic is None or not is_anthropic_request(headers) else self.anthropic
        )


OPENAI = ErrorEnvelope(
    "OpenAI",
    lambda error, _, profile: render_openai_error(error, profile),
    lambda error: error.status,
)


RESPONSES = ErrorEnvelope(
    "Responses",
    lambda error, _, profile: render_responses_error(error, profile),
    lambda error: error.status,
)


ANTHROPIC = ErrorEnvelope(
    "Anthropic",
    lambda error, request_id, _: render_anthropic_error(error, request_id),
    map_anthropic_status,
    render_rate_limits=render_anthropic_rate_limits,
)


OLLAMA = ErrorEnvelope(
    "Ollama", lambda error, _, __: render_ollama_error(error), lambda error: error.status
)


TGI = ErrorEnvelope("TGI", lambda error, _, __: render_tgi_error(error), map_tgi_status)


BY_CLIENT = replace(OPENAI, name="OpenAI or Anthropic", anthropic=ANTHROPIC)
"""OpenAI's, or Anthropic's for requests with the header `anthropic-version`."""
