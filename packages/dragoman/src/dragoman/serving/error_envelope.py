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
from ..dialects.gemini import is_gemini_request, render_gemini_error
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
    anthropic, gemini: the envelopes for requests of Anthropic's and of Google's
        clients, on paths that several vendors have.
    render_rate_limits: renders the headers that report the limits of a key, at a Unix
        time.
    key_parameter: the query parameter in which the dialect's clients may send a key.
    """

    name: str
    render: Callable[[DragomanError, str, Profile], bytes]
    map_status: Callable[[DragomanError], int]
    anthropic: ErrorEnvelope | None = None
    gemini: ErrorEnvelope | None = None
    render_rate_limits: Callable[[Sequence[RateLimitState], float], RawHeaders] = (
        render_openai_rate_limits
    )
    key_parameter: str | None = None

    def resolve(self, headers: Mapping[str, str]) -> ErrorEnvelope:
        """Return the envelope for a request with these headers."""
        # Anthropic's and Google's SDKs send headers of their own with every request, and
        # OpenAI's never do.
        if self.anthropic is not None and is_anthropic_request(headers):
            return self.anthropic
        if self.gemini is not None and is_gemini_request(headers):
            return self.gemini
        return self


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


GEMINI = ErrorEnvelope(
    "Gemini",
    lambda error, _, __: render_gemini_error(error),
    lambda error: error.status,
    key_parameter="key",
)


TGI = ErrorEnvelope("TGI", lambda error, _, __: render_tgi_error(error), map_tgi_status)


BY_CLIENT = replace(OPENAI, name="by client", anthropic=ANTHROPIC, gemini=GEMINI)
"""OpenAI's, or Anthropic's or Google's for requests with headers of their SDKs."""
