"""Token times and counts of a streamed chat or completion. Pure."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from .log import LogError


class StreamUsage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    text: str | None = None

    @property
    def has_token(self) -> bool:
        """Whether the chunk has a token: the first chunk has a role only, the last a finish reason."""
        delta = self.delta or _Delta()
        return bool(self.text or delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: StreamUsage | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class StreamTimings:
    """Collects token times and usage from a stream.

    token_times: times at which tokens arrived, seconds.
    usage: None until an event has it.
    """

    def __init__(self, format: str) -> None:
        self.token_times: list[float] = []
        self.usage: StreamUsage | None = None
        self._format = format

    def feed(self, at: float, text: str) -> None:
        """Feed whole lines of a stream, with or without `data:`. Raises LogError for an invalid chunk."""
        for line in text.splitlines():
            data = line.removeprefix("data:").strip()
            if not data.startswith("{"):
                continue
            try:
                chunk = _CHUNK.decode(data)
            except msgspec.MsgspecError as error:
                raise LogError(f"{self._format}: no chunk of a chat or a completion: {error}") from None
            self.usage = chunk.usage or self.usage
            # The first chunk often has only the role, and the last one only usage: neither is a token's time.
            if any(choice.has_token for choice in chunk.choices):
                self.token_times.append(at)
