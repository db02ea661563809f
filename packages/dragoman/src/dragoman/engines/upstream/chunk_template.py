"""Reads chunks that differ from an earlier one only in their text: the bytes around it
are compared instead of decoded.
"""

from __future__ import annotations

import re

import msgspec

from ...core.events import TextDelta
from .answer_items import TextKind
from .chunk_deltas import find_single_text
from .wire import UpstreamChunk

_MAX_MISSES = 4
"""Templates that fit no further chunk, after which no other is made: each chunk may
have a field of its own, such as OpenAI's `obfuscation`.
"""
_VALUES = {
    name: re.compile(rb'"%b": ?"' % name.encode())
    for name in ("content", "reasoning", "reasoning_content")
}
_decoder = msgspec.json.Decoder(str)


class ChunkTemplate:
    """The bytes before and after the text of the last chunk that was decoded.

    A chunk that begins and ends with them, and has one JSON string between, is the same
    JSON document but for the text. Servers repeat the rest in all chunks of a second.

    choice, kind: of the text.
    """

    __slots__ = ("_misses", "_prefix", "_suffix", "choice", "kind")

    def __init__(self) -> None:
        self._misses = 0
        self._prefix = b""
        self._suffix = b""
        self.choice = 0
        self.kind: TextKind = TextDelta

    def read_text(self, data: bytes) -> str:
        """Read the text of a chunk; empty if the chunk has to be decoded."""
        prefix = self._prefix
        if not prefix or not data.startswith(prefix) or not data.endswith(self._suffix):
            return ""
        try:
            # With its quotes: anything but one string is an error.
            text = _decoder.decode(data[len(prefix) - 1 : len(data) - len(self._suffix) + 1])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return ""
        self._misses = 0
        return text

    def learn(self, data: bytes, chunk: UpstreamChunk) -> None:
        """Take over the bytes of a chunk, if it has one choice with one text and no
        tokens. The rest, such as usage, has no effect when it is read again.
        """
        self._prefix = b""
        if self._misses >= _MAX_MISSES:
            return
        choices = chunk.choices or ()
        choice = choices[0] if len(choices) == 1 else None
        if (
            choice is None
            or choice.delta is None
            or choice.finish_reason
            or choice.logprobs is not None
            or choice.token_ids is not None
        ):
            return
        delta = choice.delta
        single = find_single_text(delta)
        if single is None or (delta.reasoning and delta.reasoning_content):
            return
        name = (
            "content"
            if single[0] is TextDelta
            else "reasoning" if delta.reasoning else "reasoning_content"
        )  # fmt: skip
        # Without escapes, the one occurrence of the name in quotes is the key whose
        # value was read.
        if data.count(b'"%b"' % name.encode()) != 1 or b"\\" in data:
            return
        found = _VALUES[name].search(data)
        if found is None:
            return
        self._misses += 1
        self._prefix = data[: found.end()]
        self._suffix = data[data.index(b'"', found.end()) :]
        self.choice = choice.index or 0
        self.kind = single[0]
