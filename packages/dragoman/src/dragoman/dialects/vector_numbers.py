"""The numbers of an embedding, for JSON."""

from __future__ import annotations

from typing import cast

_DECIMALS = 10


def list_numbers(vector: bytes) -> list[float]:
    """List the numbers of a vector of little-endian float32, each as a double that
    rounds to the same float32: 10 decimals of it where these are enough.

    A double that only widens a float32 has 17 digits. JSON writes the 10 decimals in a
    third of the time, and in two thirds of the bytes.
    """
    import numpy as np  # noqa: PLC0415 - takes long to import

    numbers = np.frombuffer(vector, "<f4")
    doubles = numbers.astype(np.float64)
    rounded = np.round(doubles, _DECIMALS)
    shortest = np.where(rounded.astype(np.float32) == numbers, rounded, doubles)
    return cast("list[float]", shortest.tolist())
