"""A cache stays within its size, and keeps what was used last."""

from __future__ import annotations

from dragoman.core.sized_cache import SizedCache


def test_full_sized_cache_evicts_unused_value() -> None:
    cache = SizedCache[int, str](30, overhead=2)
    for number in range(11):
        cache.add(number, "former", 1)
        cache.add(number, f"value {number}", 1)
        cache.find(0)
    assert [cache.find(number) for number in (0, 1, 2, 10)] == [
        "value 0",
        None,
        "value 2",
        "value 10",
    ]
    assert cache.size == 30


def test_sized_cache_keeps_no_large_value() -> None:
    cache = SizedCache[str, str](100, max_entry_size=10)
    cache.add("large", "value", 9)
    cache.add("large", "value", 11)
    assert cache.find("large") is None
    assert cache.size == 0
