"""The numbers of an embedding, for JSON."""

from __future__ import annotations

import struct


def list_numbers(vector: bytes) -> list[float]:
    """List the numbers of a vector of little-endian float32."""
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
