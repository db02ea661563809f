"""Token counts of an answer, as OpenAI's `usage`."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.events import (
    Started,
    Token,
    Usage,
)


class UsageCounter:
    """Counts the usage so far, for streams with usage in every chunk."""

    __slots__ = ("_completion", "_started")

    def __init__(self, started: Started | None = None) -> None:
        self._started = started or Started(0)
        self._completion = 0

    def add(self, tokens: Sequence[Token]) -> None:
        self._completion += len(tokens)

    @property
    def usage(self) -> Usage:
        started = self._started
        return Usage(
            started.prompt_tokens,
            self._completion,
            started.cached_tokens,
            written=started.written_tokens,
        )


def render_usage(usage: Usage) -> bytes:
    """Details are null if unknown, which differs from zero."""
    counts = ((b"cached_tokens", usage.cached), (b"cache_write_tokens", usage.written))
    details = [b'"%s":%d' % (name, count) for name, count in counts if count is not None]
    cached = b"{%s}" % b",".join(details) if details else b"null"
    reasoning = b"null" if usage.reasoning is None else b'{"reasoning_tokens":%d}' % usage.reasoning
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":%s,"completion_tokens_details":%s}'
    ) % (usage.prompt, usage.completion, usage.prompt + usage.completion, cached, reasoning)
