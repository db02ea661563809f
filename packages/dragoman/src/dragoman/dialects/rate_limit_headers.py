"""The response headers that tell the state of an API key's rate limits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct

Headers = list[tuple[bytes, bytes]]


class RateLimitState(Struct, frozen=True):
    """The state of one rate limit.

    name: `requests` or `tokens`.
    limit: maximum requests or tokens.
    remaining: requests or tokens that may be used now.
    reset_after: seconds until the whole limit is available again.
    """

    name: str
    limit: int
    remaining: int
    reset_after: float


def render_openai_rate_limits(states: Sequence[RateLimitState], _now: float) -> Headers:
    """Render `x-ratelimit-*`:
    https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers.
    """
    headers: Headers = []
    for state in states:
        name = state.name.encode()
        headers += (
            (b"x-ratelimit-limit-" + name, b"%d" % state.limit),
            (b"x-ratelimit-remaining-" + name, b"%d" % state.remaining),
            (b"x-ratelimit-reset-" + name, render_duration(state.reset_after).encode()),
        )
    return headers


def render_anthropic_rate_limits(states: Sequence[RateLimitState], now: float) -> Headers:
    """Render `anthropic-ratelimit-*`:
    https://docs.claude.com/en/api/rate-limits#response-headers.

    now: Unix seconds.
    """
    headers: Headers = []
    for state in states:
        # RFC 3339, rounded up to a second at which the limit is surely available.
        reset = datetime.fromtimestamp(-(-(now + state.reset_after) // 1), UTC)
        for field, value in (
            ("limit", str(state.limit)),
            ("remaining", str(state.remaining)),
            ("reset", reset.strftime("%Y-%m-%dT%H:%M:%SZ")),
        ):
            headers.append((f"anthropic-ratelimit-{state.name}-{field}".encode(), value.encode()))
    return headers


def render_duration(seconds: float) -> str:
    """Format a duration like Go, as OpenAI does: `0s`, `20ms`, `7.66s`, `6m0s`. Rounded
    up to milliseconds.
    """
    milliseconds = -(-round(seconds * 1_000_000) // 1000)
    if not 0 < milliseconds < 1000:
        whole_seconds, remainder = divmod(milliseconds, 1000)
        minutes, second = divmod(whole_seconds, 60)
        hours, minute = divmod(minutes, 60)
        fraction = f".{remainder:03d}".rstrip("0") if remainder else ""
        prefix = (f"{hours}h" if hours else "") + (f"{minute}m" if minutes else "")
        return f"{prefix}{second}{fraction}s"
    return f"{milliseconds}ms"
