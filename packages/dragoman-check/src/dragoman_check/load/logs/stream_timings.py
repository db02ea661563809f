"""The token times and usage of a streamed chat or completion."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dragoman_http import HttpClientError, SseDecoder

from .measured_log import LogError


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
        """Whether the chunk has a token. The first chunk may have only a role, the last
        only a finish reason.
        """
        delta = self.delta or _Delta()
        return bool(
            self.text
            or delta.content
            or delta.reasoning_content
            or delta.reasoning
            or delta.tool_calls
        )


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: StreamUsage | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class StreamTimings:
    """The token times and usage of a stream.

    format: name of the log's format, for errors.
    token_times: times at which tokens arrived, in seconds.
    usage: token counts; None until a chunk has them.
    """

    def __init__(self, format: str) -> None:
        self.token_times: list[float] = []
        self.usage: StreamUsage | None = None
        self._format = format
        self._decoder = SseDecoder()

    def feed(self, at: float, data: bytes) -> None:
        """Feed bytes of a stream of server-sent events or of JSON Lines.

        at: arrival time in seconds.

        Raises:
            LogError: a chunk is invalid.
        """
        try:
            events = self._decoder.feed(data)
        except HttpClientError as error:
            raise LogError(f"{self._format}: {error}") from None
        for event in events:
            if not event.startswith(b"{"):
                continue
            try:
                chunk = _CHUNK.decode(event.decode(errors="replace"))
            except msgspec.MsgspecError as error:
                raise LogError(
                    f"{self._format}: not a chunk of a chat or a completion: {error}"
                ) from None
            self.usage = chunk.usage or self.usage
            if any(choice.has_token for choice in chunk.choices):
                self.token_times.append(at)
