"""What a vocabulary has to say something with: running text, and kinds of tokens to improvise from. Pure.

Made once a model; every answer only points into it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ...core.engine import Tokenizer
from .keyed_rng import KeyedRandom

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
    """text: ids of sentences, one after the other; starts: where each begins. kinds: of every id (see `KINDS`)."""

    def __init__(self, tokenizer: Tokenizer, eos: Iterable[int]) -> None:
        self.tokenizer = tokenizer
        self.eos = tuple(sorted(eos))
        self.text, self.starts = _generate_text(tokenizer)
        self._kinds: NDArray[np.uint8] | None = None

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def kinds(self) -> NDArray[np.uint8]:
        """Looked at when the first constrained answer needs it: a large vocabulary takes a while."""
        if self._kinds is None:
            size = self.tokenizer.vocab_size
            kinds = [_classify_token(self.tokenizer, id) for id in range(size)]
            self._kinds = np.array(kinds, np.uint8)
        return self._kinds

    def encode(self, text: str) -> list[int]:
        """Model text: names of control tokens in it stand for those tokens."""
        return self.tokenizer.encode(text, special=True)


def _generate_text(tokenizer: Tokenizer) -> tuple[array[int], list[int]]:
    """Every sentence is tokenised by itself and ends its line, so that an answer may begin with any of them."""
    rng = KeyedRandom("running text")
    text, starts = array("i"), list[int]()
    for _ in range(_NUM_SENTENCES):
        words = [_WORDS[rng.randbelow(len(_WORDS))] for _ in range(4 + rng.randbelow(9))]
        starts.append(len(text))
        text.extend(tokenizer.encode(" ".join(words).capitalize() + ".\n", special=False))
    return text, starts


ODD, SPACE, OTHER, DIGIT, WORD, COMMA, CLOSING, QUOTE = range(8)
KIND_WEIGHTS = (0.001, 0.02, 0.3, 1.0, 2.0, 0.7, 3.0, 3.0)
"""How likely a token of each kind is, by its place in this tuple, where all kinds are allowed."""


_EXPONENT_MARKERS = ("e", "E")
"""Numbers with one are soon too large for those who read them."""
_PUNCTUATION_KINDS = {'"': QUOTE, "}": CLOSING, "]": CLOSING, ",": COMMA}


def _classify_token(tokenizer: Tokenizer, id: int) -> int:
    text = tokenizer.token_bytes(id).decode("utf-8", "replace")
    if not text or "\ufffd" in text or tokenizer.is_special(id):
        return ODD
    if text.isspace():
        return SPACE
    if text[0] in _PUNCTUATION_KINDS:
        # One that opens or closes a string and goes on with something else leads astray.
        return _PUNCTUATION_KINDS[text[0]] if not text.strip('"}],: \n') else ODD
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit():
        return DIGIT
    if stripped in _EXPONENT_MARKERS:
        return ODD
    return WORD if stripped.isascii() and stripped.isalpha() else OTHER
