"""A vocabulary of all sequences of one, two and three bytes: tokens often end in the
middle of a character.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SPECIAL = {"<|start|>": 0, "<|end|>": 1}
_FIRST = (0, 2, 2 + 256, 2 + 256 + 256**2)
"""The first id of the tokens with this number of bytes."""


class Triples:
    """A tokenizer that splits texts every three bytes.

    prefix: prepended to every text, as some normalizers do.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    @property
    def vocab_size(self) -> int:
        return 2 + 256 + 256**2 + 256**3

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return SPECIAL

    @property
    def longest_token(self) -> int:
        return 9

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        pieces = re.split(r"(<\|start\|>|<\|end\|>)", text) if special else [text]
        ids = [id for piece in pieces for id in self._piece(piece, special=special)]
        return [0, *ids] if add_special_tokens else ids

    def _piece(self, text: str, *, special: bool) -> list[int]:
        if special and text in SPECIAL:
            return [SPECIAL[text]]
        data = (self._prefix + text).encode()
        groups = [data[at : at + 3] for at in range(0, len(data), 3)]
        return [_FIRST[len(group)] + int.from_bytes(group) for group in groups]

    def token_bytes(self, id: int) -> bytes:
        for name, special in SPECIAL.items():
            if id == special:
                return name.encode()
        size = next(size for size in (3, 2, 1) if id >= _FIRST[size])
        return (id - _FIRST[size]).to_bytes(size)

    def is_special(self, id: int) -> bool:
        return id in SPECIAL.values()

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        visible = [id for id in ids if not (skip_special_tokens and self.is_special(id))]
        return b"".join(map(self.token_bytes, visible)).decode(errors="replace")
