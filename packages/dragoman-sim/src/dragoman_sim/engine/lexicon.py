"""Token ids for generated text, by kind."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dragoman.core.tokenizer import Tokenizer

from .keyed_random import KeyedRandom

_WORDS = """
the a one this every some old new small quiet early late long short warm cold bright grey river mountain city
garden market harbour library station window letter engine wheel lantern bridge teacher sailor baker painter child
doctor farmer captain friend winter morning evening story answer question number colour sound light water bread paper
silver copper stone wood wind rain snow road field forest island valley table chair door house ship train clock map
book song walks turns opens keeps brings finds follows leaves holds carries builds draws writes reads counts hears
sees knows tells asks thinks waits begins ends moves rests grows falls rises shines slowly often always never again
today soon near far above below behind between with without before after under over into from and or but while
because so then
""".split()  # noqa: SIM905 - a list of them would be a page


_NUM_SENTENCES = 600


class Lexicon:
    """Token ids for generated text.

    text: token ids of all sentences, concatenated.
    starts: index in `text` at which each sentence begins.
    kinds: kind of every token id, an index of `KIND_WEIGHTS`.
    eos: end-of-sequence tokens.
    """

    def __init__(self, tokenizer: Tokenizer, eos: Iterable[int]) -> None:
        self.tokenizer = tokenizer
        self.eos = tuple(sorted(eos))
        # Every sentence is tokenized separately and ends its line, so a reply may begin
        # with any of them.
        rng = KeyedRandom("running text")
        self.text = array("i")
        self.starts = list[int]()
        for _ in range(_NUM_SENTENCES):
            words = [_WORDS[rng.randbelow(len(_WORDS))] for _ in range(4 + rng.randbelow(9))]
            self.starts.append(len(self.text))
            self.text.extend(tokenizer.encode(" ".join(words).capitalize() + ".\n", special=False))
        self._kinds: NDArray[np.uint8] | None = None

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def kinds(self) -> NDArray[np.uint8]:
        """Kind of every token id. Computed on first use: classifying a large vocabulary
        is slow.
        """
        if self._kinds is None:
            kinds: list[int] = []
            for id in range(self.tokenizer.vocab_size):
                text = self.tokenizer.token_bytes(id).decode("utf-8", "replace")
                stripped = text.strip()
                if not text or "\ufffd" in text or self.tokenizer.is_special(id):
                    kinds.append(ODD)
                elif text.isspace():
                    kinds.append(SPACE)
                elif text[0] in _PUNCTUATION_KINDS:
                    # A token that opens or closes a string and continues with other
                    # text would leave the expected structure.
                    kinds.append(_PUNCTUATION_KINDS[text[0]] if not text.strip('"}],: \n') else ODD)
                elif stripped.isascii() and stripped.isdigit():
                    kinds.append(DIGIT)
                elif stripped in _EXPONENT_MARKERS:
                    kinds.append(ODD)
                else:
                    kinds.append(WORD if stripped.isascii() and stripped.isalpha() else OTHER)
            self._kinds = np.array(kinds, np.uint8)
        return self._kinds

    def encode(self, text: str) -> list[int]:
        """Encode model text, in which names of control tokens are those tokens."""
        return self.tokenizer.encode(text, special=True)


ODD, SPACE, OTHER, DIGIT, WORD, COMMA, CLOSING, QUOTE = range(8)


KIND_WEIGHTS = (0.001, 0.02, 0.3, 1.0, 2.0, 0.7, 3.0, 3.0)
"""Weight of each kind in sampling, by the numbers above."""


_EXPONENT_MARKERS = ("e", "E")
"""Tokens excluded from numbers: random exponents soon exceed what parsers accept."""


_PUNCTUATION_KINDS = {'"': QUOTE, "}": CLOSING, "]": CLOSING, ",": COMMA}
