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

    __slots__ = ("_completion", "_has_output", "_started")

    def __init__(self, started: Started | None = None) -> None:
        self._started = started or Started(None)
        self._completion = 0
        self._has_output = False

    def add(self, tokens: Sequence[Token], *, has_output: bool) -> None:
        """Add the tokens of an event.

        has_output: the event has output, so without tokens the engine does not report
            them.
        """
        self._completion += len(tokens)
        self._has_output = self._has_output or has_output

    @property
    def usage(self) -> Usage:
        started = self._started
        return Usage(
            None if started.is_estimate else started.prompt_tokens,
            None if self._has_output and not self._completion else self._completion,
            started.cached_tokens,
            written=started.written_tokens,
        )


def render_usage(usage: Usage) -> bytes:
    """Render the counts; null if they are unknown, as are unknown details, which
    differs from zero. Estimates are rendered: many clients require numbers.
    """
    if usage.prompt is None or usage.completion is None:
        return b"null"
    details: list[bytes] = []
    if usage.cached is not None:
        details.append(b'"cached_tokens":%d' % usage.cached)
    if usage.written is not None:
        details.append(b'"cache_write_tokens":%d' % usage.written)
    cached = b"{%s}" % b",".join(details) if details else b"null"
    reasoning = b"null" if usage.reasoning is None else b'{"reasoning_tokens":%d}' % usage.reasoning
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":%s,"completion_tokens_details":%s}'
    ) % (usage.prompt, usage.completion, usage.prompt + usage.completion, cached, reasoning)
