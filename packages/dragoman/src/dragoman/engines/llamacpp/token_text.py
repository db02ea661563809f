"""Recovery of tokens that llama.cpp's stream does not report: those that end within a
UTF-8 character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.errors import EngineError

_MAX_CHARACTER_BYTES = 4
"""Maximum bytes of a UTF-8 character."""


class TokenText:
    """The bytes of every token, and an index of tokens that may end within a character."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._bytes = tuple(tokens)
        self._ids: dict[bytes, list[int]] = {}
        for id, raw in enumerate(tokens):
            if not raw.isascii() and not _is_text(raw):
                self._ids.setdefault(raw, []).append(id)

    def __len__(self) -> int:
        """Number of tokens in the vocabulary."""
        return len(self._bytes)

    def get_bytes(self, id: int) -> bytes:
        """Get the bytes of a token; empty for an id outside the vocabulary."""
        return self._bytes[id] if id < len(self._bytes) else b""

    def find_letter(self) -> int:
        """Find a token whose text is a whole word or letter. Raises EngineError if
        there is none.
        """
        letter = next((id for id, raw in enumerate(self._bytes) if raw.isalpha()), None)
        if letter is None:
            raise EngineError("the vocabulary has no token that is a word")
        return letter

    def recover_tokens(self, content: str, count: int, last: int) -> tuple[int, ...] | None:
        """Recover the `count` tokens before `last` that together decode to `content`.

        None if they are ambiguous: the text was not UTF-8, or has several
        tokenizations.
        """
        if "\ufffd" in content:
            return None
        text = content.encode()
        end = self._bytes[last]
        if not text.endswith(end):
            return None
        splits = self._find_splits(text[: len(text) - len(end)], b"", count)
        # A second split is enough to know that the text is ambiguous: the others,
        # possibly many, are not computed.
        first = next(splits, None)
        second = next(splits, None)
        return first if second is None else None

    def _find_splits(self, text: bytes, prefix: bytes, count: int) -> Iterator[tuple[int, ...]]:
        """Find each split of a text into `count` tokens that all end within a
        character.
        """
        if count == 0:
            if not text:
                yield ()
            return
        for cut in range(1, len(text) + 1):
            if not ends_mid_character(prefix + text[:cut]):
                continue
            for id in self._ids.get(text[:cut], ()):
                for other_ids in self._find_splits(text[cut:], prefix + text[:cut], count - 1):
                    yield (id, *other_ids)


def _is_text(raw: bytes) -> bool:
    """Whether the bytes are whole UTF-8 characters, so that no text ends within one after
    them.
    """
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def ends_mid_character(text: bytes) -> bool:
    """Whether the last bytes are an incomplete UTF-8 character, as in llama.cpp's
    validate_utf8.
    """
    for back in range(1, min(_MAX_CHARACTER_BYTES, len(text) + 1)):
        byte = text[-back]
        if byte & 0xC0 != 0x80:
            width = (
                2
                if byte & 0xE0 == 0xC0
                else 3
                if byte & 0xF0 == 0xE0
                else 4
                if byte & 0xF8 == 0xF0
                else 1
            )
            return width > back
    return False
