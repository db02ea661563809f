"""A tokenizer with readable ids: every byte, a few words, and two special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WORDS = ["Hello", " world", "<", "end", ">", "é", "日本", "\n"]
END = 256 + len(WORDS)
THINK = 257 + len(WORDS)


class ByteTokenizer:
    """A tokenizer of 256 bytes, a few words and two special tokens."""

    vocab_size = 258 + len(WORDS)
    longest_token = 7
    special_tokens: Mapping[str, int] = {"<end>": END, "<think>": THINK}

    def __init__(self) -> None:
        self._bytes = [
            *(bytes([n]) for n in range(256)),
            *(word.encode() for word in WORDS),
            b"<end>",
            b"<think>",
        ]

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def token_bytes(self, id: int) -> bytes:
        return self._bytes[id]

    def is_special(self, id: int) -> bool:
        return id >= END

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        visible = (id for id in ids if not (skip_special_tokens and self.is_special(id)))
        return b"".join(self._bytes[id] for id in visible).decode("utf-8", "replace")


BYTES = ByteTokenizer()
