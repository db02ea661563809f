"""Random words, names, numbers and phrases for the tasks, from one seeded generator."""

# ruff: noqa: SIM905 (a split string is easier to read than a list of words)
from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from .facts import CITIES, NAMES, WORDS

T = TypeVar("T")
ONSETS = "b br d dr f fl g gr h j k kl l m n p pr r s st t tr v w z".split()
VOWELS = "a e i o u".split()
CODAS = ["", "", "", "n", "r", "l", "s", "m", "k", "t"]


@dataclass(frozen=True)
class Source:
    """Random material.

    words: ordinary English words.
    sentences: complete sentences.
    pieces: the texts of a tokenizer's tokens; words, while there is no tokenizer yet.
    known: whether the memorized lists may be used too; False in an evaluation on words
      that are excluded from training.
    """

    rng: random.Random
    words: Sequence[str]
    sentences: Sequence[str]
    pieces: Sequence[str]
    known: bool = True

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.rng.randrange(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return some of the items, each at most once, in random order."""
        return self.rng.sample(items, count)

    def integer(self, low: int, high: int) -> int:
        """Return an integer; both bounds are included."""
        return self.rng.randint(low, high)

    def word(self) -> str:
        """Return a lower-case word."""
        return self.pick(WORDS) if self.known and self.chance(0.25) else self.pick(self.words)

    def distinct_words(self, count: int) -> list[str]:
        """Return different words."""
        found: dict[str, None] = {}
        while len(found) < count:
            found.setdefault(self.word())
        return list(found)

    def name(self) -> str:
        """Return a capitalised name: a common one, or random syllables."""
        if self.known and self.chance(0.4):
            return self.pick(NAMES)
        syllables = (
            self.pick(ONSETS) + self.pick(VOWELS) + self.pick(CODAS)
            for _ in range(self.integer(1, 3))
        )
        return "".join(syllables).capitalize()

    def city(self) -> str:
        """Return a place: a real city, a capitalised word or an invented name."""
        if self.known and self.chance(0.5):
            return self.pick(CITIES)
        if self.chance(0.15):
            return f"{self.name()} {self.name()}"
        return self.word().capitalize() if self.chance(0.5) else self.name()

    def number(self) -> int:
        """Return a number of one to five digits; short ones are more frequent."""
        return self.integer(0, 10 ** self.pick((1, 2, 2, 3, 3, 4, 5)) - 1)

    def code(self) -> str:
        """Return a random string of letters and digits, such as x7Kq2."""
        return "".join(self.rng.choices(string.ascii_letters + string.digits, k=self.integer(3, 8)))

    def piece_string(self, count: int) -> str:
        """Return the joined texts of random tokens, without white space at the ends and
        with no white space but blanks within.
        """
        return (
            " ".join("".join(self.pick(self.pieces) for _ in range(count)).split()) or self.word()
        )

    def title(self) -> str:
        """Return a short value: a word, two words, a name or a code."""
        kind = self.integer(0, 9)
        if kind < 4:
            return self.word()
        if kind < 6:
            return f"{self.word()} {self.word()}"
        if kind < 8:
            return self.name()
        return (
            self.code()
            if kind == 8
            else self.piece_string(self.integer(1, 4)).replace('"', "").replace("\\", "") or "x"
        )

    def phrase(self) -> str:
        """Return a phrase to repeat: words, pieces, names, numbers, codes or a
        sentence; 1 to about 16 tokens.
        """
        kind = self.integer(0, 9)
        count = self.pick((1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 10, 12))
        if kind < 4:
            return " ".join(self.word() for _ in range(count))
        if kind < 6:
            return self.piece_string(count)
        if kind == 6:
            return " ".join(
                self.pick((self.name, self.word, self.code))() for _ in range(min(count, 6))
            )
        if kind == 7:
            return " ".join(str(self.number()) for _ in range(min(count, 6)))
        return self.pick(self.sentences) if kind == 8 else self.code()
