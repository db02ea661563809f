"""A slot is reused by requests that share its prefix and its owner."""

from __future__ import annotations

from dragoman.core.images import PromptImage
from dragoman.engines.llamacpp.engine import SlotPool, build_cache_keys


def test_the_longest_beginning_wins() -> None:
    slots = SlotPool(3)
    for tokens in ((1, 2, 3), (1, 2, 9), (7,)):
        slot, cached = slots.acquire((), "")
        assert not cached
        slots.release(slot, tokens, "me")
    assert slots.count_cached_tokens((1, 2, 9, 4), "me") == 3
    slot, cached = slots.acquire((1, 2, 9, 4), "me")
    assert (slot, cached) == (1, True)
    assert slots.count_cached_tokens((1, 2, 9, 4), "me") == 2


def test_a_prompt_that_shares_nothing_runs_beside_those_that_run() -> None:
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


def test_a_slot_of_another_owner_is_not_reused() -> None:
    slots = SlotPool(1)
    slots.release(slots.acquire((), "me")[0], (1, 2), "me")
    assert slots.count_cached_tokens((1, 2, 3), "you") == 0
    assert slots.acquire((1, 2, 3), "you") == (0, False)


def test_the_last_token_is_always_computed() -> None:
    slots = SlotPool(1)
    slots.release(slots.acquire((), "")[0], (1, 2, 3), "")
    assert slots.count_cached_tokens((1, 2, 3), "") == 2


def test_what_is_forgotten_is_not_found() -> None:
    slots = SlotPool(2)
    slots.release(slots.acquire((), "")[0], (1, 2), "")
    slots.clear_cache()
    assert slots.count_cached_tokens((1, 2, 3), "") == 0


def test_without_caching_no_slot_is_reused() -> None:
    slots = SlotPool(1, caching=False)
    slots.release(slots.acquire((), "")[0], (1, 2), "")
    assert slots.acquire((1, 2, 3), "") == (0, False)


def test_else_the_one_that_was_used_longest_ago_is_taken() -> None:
    slots = SlotPool(2)
    first, _ = slots.acquire((1,), "")
    second, _ = slots.acquire((2,), "")
    slots.release(second, (2,), "")
    slots.release(first, (1,), "")
    assert slots.acquire((3,), "")[0] == second


def test_prompts_share_no_more_than_their_images_do() -> None:
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
