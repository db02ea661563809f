"""The buffer of unreleased text with its tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from ..core.events import (
    Token,
)

# Longer than any added token: a token that is a marker is found even if its text
# arrives in several deltas.
_MAX_TOKEN_BYTES = 64


_REPLACEMENT_CHAR = "\ufffd".encode()


class MarkerTokens:
    """The tokens of the vocabulary by which markers are told from ordinary text. Built
    once for a format: all its parsers share it.

    single_tokens: markers that are one token of the vocabulary; see `Buffer.is_marker`.
    anchors: markers that contain a token of the vocabulary: that token, and the number
        of characters after it.
    """

    __slots__ = ("anchors", "tokens")

    def __init__(
        self,
        single_tokens: Collection[str] = (),
        anchors: Mapping[str, tuple[str, int]] = MappingProxyType({}),
    ) -> None:
        self.anchors: Mapping[str, tuple[str, int]] = {
            **{marker: (marker, 0) for marker in single_tokens},
            **anchors,
        }
        self.tokens = frozenset(token for token, _ in self.anchors.values())


NO_MARKER_TOKENS = MarkerTokens()


class Buffer:
    """Text that has not been released yet, together with its tokens, so that no token
    is lost.

    A token is released with its first released character; when text is dropped, with
    its last dropped character.

    markers: the markers that only their tokens make valid.
    """

    __slots__ = (
        "_chunks",
        "_covered",
        "_has_tokens",
        "_marker_ends",
        "_markers",
        "_offset",
        "_tokens",
        "_unmatched_bytes",
        "end",
        "released",
    )

    def __init__(self, markers: MarkerTokens = NO_MARKER_TOKENS) -> None:
        # Offsets are in characters from the start of the stream. None while empty,
        # which is nearly always: an empty deque takes most of a kilobyte.
        self._chunks: deque[str] | None = None
        self._offset = 0  # Characters of the first chunk that have been released.
        self._tokens: deque[tuple[int, int, Token]] | None = (
            None  # Tokens with the offsets of their text.
        )
        self._covered = 0  # Offset of the end of the last token's text.
        self.end = 0
        """Offset of the end of all text that has arrived."""
        self.released = 0
        """Offset of the end of the released text, which is the start of the buffer."""
        self._markers = markers
        self._has_tokens = False
        self._unmatched_bytes = (
            b""  # Text after the last token; it belongs to tokens that have not arrived.
        )
        self._marker_ends: dict[int, int] | None = (
            None  # Lengths of tokens that are markers, by their end offsets.
        )

    def __len__(self) -> int:
        return self.end - self.released

    @property
    def is_empty(self) -> bool:
        """Whether no text and no tokens are buffered."""
        return self.end == self.released and not self._tokens

    @property
    def start(self) -> int:
        """Offset of the buffer's start, in characters from the start of the stream."""
        return self.released

    def push(self, text: str, tokens: tuple[Token, ...]) -> None:
        if marker_tokens := self._markers.tokens:
            # Record where tokens that are a whole marker end, by aligning the tokens
            # with the text. Bytes are aligned, since a byte-level BPE token may hold
            # half of a character, which has no text of its own. Text and tokens need
            # not arrive together: a token's text may be held back until its last
            # character is complete.
            data = self._unmatched_bytes + text.encode()
            pos = 0
            self._has_tokens = self._has_tokens or bool(tokens)
            for token in tokens:
                start = data.find(token.utf8, pos) if token.text in marker_tokens else -1
                if start < 0:
                    pos += _count_overlap(data, pos, token)
                    continue
                pos = start + len(token.utf8)
                self._marker_ends = self._marker_ends or {}
                self._marker_ends[self.end + len(text) - len(data[pos:].decode())] = len(token.text)
            # Bounded: if the tokens do not spell the text (a normalizing tokenizer), it
            #     would grow with the output.
            self._unmatched_bytes = data[pos:][-_MAX_TOKEN_BYTES:]
        if text:
            self._chunks = self._chunks or deque()
            self._chunks.append(text)
        self.end += len(text)
        if tokens:
            self._tokens = self._tokens or deque()
            self._tokens.extend(self._spans(text, tokens))
            self._covered = self.end

    def _spans(self, text: str, tokens: tuple[Token, ...]) -> Iterator[tuple[int, int, Token]]:
        """Yield each token with the begin and end offsets of its text; the last token
        spans the rest of the text.
        """
        # While streaming, most deltas have one token, and nothing has to be aligned.
        if len(tokens) == 1 and not tokens[0].markup:
            yield self._covered, self.end, tokens[0]
            return
        data = text.encode()
        at = 0
        begin = self._covered
        end = self.end - len(text)
        for token in tokens[:-1]:
            token_bytes = data[at : at + _count_overlap(data, at, token)]
            at += len(token_bytes)
            # Offsets count characters. 0b10xxxxxx continues a UTF-8 character; any
            # other byte begins one.
            end += sum(byte & 0xC0 != 0x80 for byte in token_bytes)
            yield min(begin, end), end, token
            # A character of several tokens is released with all of them.
            begin = end - (at < len(data) and data[at] & 0xC0 == 0x80)
        yield (self.end if tokens[-1].markup else begin), self.end, tokens[-1]

    def pop(self, n: int, *, drop: bool = False) -> tuple[str, tuple[Token, ...]]:
        """Release n characters, and the tokens whose text has been released at least in
        part.

        drop: release only tokens whose text has been released completely.
        """
        parts: list[str] = []
        size = n
        self.released += n
        while n and self._chunks:
            chunk = self._chunks[0]
            available = len(chunk) - self._offset
            if n < available:
                parts.append(chunk[self._offset : self._offset + n])
                self._offset += n
                break
            parts.append(chunk[self._offset :] if self._offset else chunk)
            self._chunks.popleft()
            self._offset = 0
            n -= available
        tokens: list[Token] = []
        # A token whose text continues after a dropped marker belongs to the following
        # text.
        released = -1 if drop or not size else self.released
        while self._tokens and (
            self._tokens[0][1] <= self.released or self._tokens[0][0] < released
        ):
            tokens.append(self._tokens.popleft()[2])
        self._chunks = self._chunks or None
        self._tokens = self._tokens or None
        return "".join(parts), tuple(tokens)

    def text(self) -> str:
        """Return the buffered text. The cost is linear in its length."""
        return "".join(self._chunks or ())[self._offset :]

    def peek(self, n: int) -> str:
        """Return the next n characters, which stay in the buffer."""
        text = ""
        offset = self._offset
        for chunk in self._chunks or ():
            text += chunk[offset : offset + n - len(text)]
            if len(text) == n:
                break
            offset = 0
        return text

    def skip(self, n: int) -> None:
        """Advance past n characters that were not buffered, while the buffer is empty."""
        self.end += n
        self.released += n
        self._covered = self.end

    def is_marker(self, marker: str, unread: int) -> bool:
        """Whether the text of a marker, which ends `unread` characters before the end
        of the buffer, is that marker.

        If the marker is one token of the vocabulary, or contains one, the same text
        from other tokens is ordinary text. If no tokens are known, the text alone
        decides.
        """
        anchor = self._markers.anchors.get(marker)
        return (
            anchor is None
            or not self._has_tokens
            or self.end - unread - anchor[1] in (self._marker_ends or ())
        )

    def first_mark(self, unread: int) -> int:
        """Return the position of the first marker token within the last `unread`
        characters; -1 if there is none.
        """
        begin = self.end - unread
        starts = [
            end - size for end, size in (self._marker_ends or {}).items() if end - size >= begin
        ]
        return min(starts) - begin if starts else -1


def _count_overlap(data: bytes, pos: int, token: Token) -> int:
    """Return how many bytes at the start of data[pos:] this token wrote. A token may
    hold part of a character.
    """
    token_bytes = token.utf8
    if token.markup:
        return 0
    if data.startswith(token_bytes, pos):
        return len(token_bytes)
    if pos == 0 and token.raw is None:  # The beginning of its text may have been released before.
        return next(
            (n for n in range(len(token_bytes) - 1, 0, -1) if data.startswith(token_bytes[-n:])), 0
        )
    # The detokenizer wrote U+FFFD for bytes that form no character; the replacements
    # belong to their token.
    replaced_bytes = 0
    while token.raw is not None and data.startswith(_REPLACEMENT_CHAR, pos + replaced_bytes):
        replaced_bytes += len(_REPLACEMENT_CHAR)
    return replaced_bytes
