"""A keyed pseudorandom generator: numbers derived from a key, the same on every
machine.
"""

from __future__ import annotations

from hashlib import blake2b

_NUMBERS_PER_BLOCK = 8


_BYTES_PER_NUMBER = 8


_SCALE = 2.0**-64


class KeyedRandom:
    """A pseudorandom generator. Equal keys draw equal numbers."""

    __slots__ = ("_buffer", "_count", "_key")

    def __init__(self, *key: str | bytes | int) -> None:
        parts: list[bytes] = []
        for part in key:
            encoded = (
                part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
            )
            # With lengths, so that no two keys are joined to the same bytes.
            parts += len(encoded).to_bytes(8, "little"), encoded
        self._key = blake2b(b"".join(parts), digest_size=16).digest()
        self._count = 0
        self._buffer = b""

    def random(self) -> float:
        """Draw a number that is at least 0 and less than 1."""
        if not self._buffer:
            block = self._count.to_bytes(8, "little")
            self._buffer = blake2b(
                block, digest_size=_NUMBERS_PER_BLOCK * _BYTES_PER_NUMBER, key=self._key
            ).digest()
            self._count += 1
        value = self._buffer[:_BYTES_PER_NUMBER]
        self._buffer = self._buffer[_BYTES_PER_NUMBER:]
        # The upper 53 bits, so that the result is never rounded up to 1.
        return (int.from_bytes(value, "little") >> 11) * (_SCALE * 2048)

    def randbelow(self, count: int) -> int:
        """Draw an integer from 0 to count - 1."""
        return int(self.random() * count)
