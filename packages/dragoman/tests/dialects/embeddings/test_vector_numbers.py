"""The numbers of vectors in JSON keep all bits."""

from __future__ import annotations

import msgspec
import numpy as np

from dragoman.dialects.vector_numbers import list_numbers


def test_list_numbers_keeps_all_bits_of_float32() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.uniform(-44, 38, 5000)
    numbers = (rng.choice([-1.0, 1.0], 5000) * 10**sizes).astype("<f4")
    numbers = np.append(numbers, np.array([0.0, -0.0, 1.0, 2.0**-149], "<f4"))
    written = msgspec.json.encode(list_numbers(numbers.tobytes()))
    parsed = np.array(msgspec.json.decode(written, type=list[float])).astype("<f4")
    assert parsed.tobytes() == numbers.tobytes()
