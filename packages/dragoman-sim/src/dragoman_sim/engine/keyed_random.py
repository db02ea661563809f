"""A keyed pseudorandom generator: numbers derived from a key, the same on every
machine.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

_BLOCK = Struct("<8Q")
"""The numbers that are drawn at once."""


_SCALE = 2.0**-53


class KeyedRandom:
    """A pseudorandom generator. Equal keys draw equal numbers."""

    __slots__ = ("_count", "_key", "_numbers")

    def __init__(self, *key: str | bytes | int) -> None:
        joined = blake2b(digest_size=16)
        for part in key:
            encoded = (
                part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
            )
            # With lengths, so that no two keys are joined to the same bytes.
            joined.update(len(encoded).to_bytes(8, "little"))
            joined.update(encoded)
        self._key = joined.digest()
        self._count = 0
        # The drawn numbers of 64 bits, the next one last.
        self._numbers: list[int] = []

    def random(self) -> float:
        """Draw a number that is at least 0 and less than 1."""
        if not self._numbers:
            self._draw()
        # The upper 53 bits, so that the result is never rounded up to 1.
        return (self._numbers.pop() >> 11) * _SCALE

    def randbelow(self, count: int) -> int:
        """Draw an integer from 0 to count - 1."""
        if not self._numbers:
            self._draw()
        return int((self._numbers.pop() >> 11) * _SCALE * count)

    def _draw(self) -> None:
        block = self._count.to_bytes(8, "little")
        digest = blake2b(block, digest_size=_BLOCK.size, key=self._key).digest()
        self._numbers = [*_BLOCK.unpack(digest)]
        self._numbers.reverse()
        self._count += 1
