"""A slot is reused by requests that share its prefix and its owner."""

from __future__ import annotations

from dragoman.core.prompt_images import PromptImage
from dragoman.engines.llamacpp.engine import SlotPool, build_cache_keys


def test_acquire_prefers_slot_with_longest_prefix() -> None:
    slots = SlotPool(3)
    for tokens in ((1, 2, 3), (1, 2, 9), (7,)):
        slot, cached = slots.acquire((), "")
        assert not cached
        slots.release(slot, tokens, "me")
    assert slots.count_cached_tokens((1, 2, 9, 4), "me") == 3
    slot, cached = slots.acquire((1, 2, 9, 4), "me")
    assert (slot, cached) == (1, True)
    assert slots.count_cached_tokens((1, 2, 9, 4), "me") == 2


def test_acquire_without_shared_prefix_returns_unused_slot() -> None:
    slots = SlotPool(6)
    taken = [slots.acquire((n,), "")[0] for n in range(3)]
    assert taken == [0, 1, 2]
    slots.release(1, (1,), "")
    assert slots.acquire((7,), "")[0] == 3, (
        "the least recently used slot, so that slot 1 keeps its contents"
    )
    slots.release(0, (0,), "")
    slots.release(2, (2,), "")
    slots.release(3, (7,), "")
    assert slots.acquire((8,), "")[0] == 4, "beside none that run"


def test_acquire_does_not_reuse_slot_of_other_owner() -> None:
    slots = SlotPool(1)
    slots.release(slots.acquire((), "me")[0], (1, 2), "me")
    assert slots.count_cached_tokens((1, 2, 3), "you") == 0
    assert slots.acquire((1, 2, 3), "you") == (0, False)


def test_count_cached_tokens_excludes_last_token() -> None:
    slots = SlotPool(1)
    slots.release(slots.acquire((), "")[0], (1, 2, 3), "")
    assert slots.count_cached_tokens((1, 2, 3), "") == 2


def test_clear_cache_removes_cached_tokens() -> None:
    slots = SlotPool(2)
    slots.release(slots.acquire((), "")[0], (1, 2), "")
    slots.clear_cache()
    assert slots.count_cached_tokens((1, 2, 3), "") == 0


def test_acquire_with_caching_disabled_reuses_no_prefix() -> None:
    slots = SlotPool(1, caching=False)
    slots.release(slots.acquire((), "")[0], (1, 2), "")
    assert slots.acquire((1, 2, 3), "") == (0, False)


def test_acquire_without_match_takes_least_recently_used() -> None:
    slots = SlotPool(2)
    first, _ = slots.acquire((1,), "")
    second, _ = slots.acquire((2,), "")
    slots.release(second, (2,), "")
    slots.release(first, (1,), "")
    assert slots.acquire((3,), "")[0] == second


def test_cached_prefix_ends_at_first_different_image() -> None:
    tokens = (1, 2, 9, 9, 3, 9, 9, 4)

    def build_keys(*digests: bytes) -> tuple[int, ...]:
        places = zip((2, 5), digests, strict=True)
        return build_cache_keys(
            tokens, [PromptImage(begin, begin + 2, digest, None) for begin, digest in places]
        )

    slots = SlotPool(1)
    slots.release(slots.acquire((), "")[0], build_keys(b"red", b"green"), "")
    assert slots.count_cached_tokens(build_keys(b"red", b"green"), "") == 7
    assert slots.count_cached_tokens(build_keys(b"red", b"blue"), "") == 5
    assert slots.count_cached_tokens(build_keys(b"blue", b"green"), "") == 2
    assert slots.count_cached_tokens(tokens, "") == 2
