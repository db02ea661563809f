"""Chance that is no chance: numbers that follow from a key alone, the same on every machine. Pure and small.

A generator of a library holds kilobytes a stream, and its numbers may change with its version.
"""

from __future__ import annotations

from hashlib import blake2b

_AT_ONCE = 8
_BYTES = 8
_SCALE = 2.0**-64


class Draws:
    """Numbers that look random. Equal keys draw equal numbers."""

    __slots__ = ("_count", "_key", "_left")

    def __init__(self, *key: str | bytes | int) -> None:
        state = blake2b(digest_size=16)
        for part in key:
            told = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
            state.update(len(told).to_bytes(8, "little") + told)
        self._key = state.digest()
        self._count = 0
        self._left = b""

    def unit(self) -> float:
        """At least 0 and less than 1."""
        if not self._left:
            block = self._count.to_bytes(8, "little")
            self._left = blake2b(block, digest_size=_AT_ONCE * _BYTES, key=self._key).digest()
            self._count += 1
        value, self._left = self._left[:_BYTES], self._left[_BYTES:]
        # The upper 53 bits, so that the result is never rounded up to 1.
        return (int.from_bytes(value, "little") >> 11) * (_SCALE * 2048)

    def below(self, count: int) -> int:
        """A whole number from 0 to count - 1."""
        return int(self.unit() * count)
