"""A slot is used again by who can use what it holds, and may."""

from __future__ import annotations

from dragoman.core.vision import ShownImage
from dragoman.engines.llamacpp.slots import Slots, keyed


def test_the_longest_beginning_wins() -> None:
    slots = Slots(3)
    for tokens in ((1, 2, 3), (1, 2, 9), (7,)):
        slot, cached = slots.take((), "")
        assert not cached
        slots.give(slot, tokens, "me")
    assert slots.cached_tokens((1, 2, 9, 4), "me") == 3
    slot, cached = slots.take((1, 2, 9, 4), "me")
    assert (slot, cached) == (1, True)
    assert slots.cached_tokens((1, 2, 9, 4), "me") == 2


def test_nobody_uses_what_another_owner_left() -> None:
    slots = Slots(1)
    slots.give(slots.take((), "me")[0], (1, 2), "me")
    assert slots.cached_tokens((1, 2, 3), "you") == 0
    assert slots.take((1, 2, 3), "you") == (0, False)


def test_the_last_token_is_always_computed() -> None:
    slots = Slots(1)
    slots.give(slots.take((), "")[0], (1, 2, 3), "")
    assert slots.cached_tokens((1, 2, 3), "") == 2


def test_what_is_forgotten_is_not_found() -> None:
    slots = Slots(2)
    slots.give(slots.take((), "")[0], (1, 2), "")
    slots.forget()
    assert slots.cached_tokens((1, 2, 3), "") == 0


def test_without_caching_nothing_is_kept() -> None:
    slots = Slots(1, caching=False)
    slots.give(slots.take((), "")[0], (1, 2), "")
    assert slots.take((1, 2, 3), "") == (0, False)


def test_else_the_one_that_was_used_longest_ago_is_taken() -> None:
    slots = Slots(2)
    first, _ = slots.take((1,), "")
    second, _ = slots.take((2,), "")
    slots.give(second, (2,), "")
    slots.give(first, (1,), "")
    assert slots.take((3,), "")[0] == second


def test_prompts_share_no_more_than_their_images_do() -> None:
    tokens = (1, 2, 9, 9, 3, 9, 9, 4)

    def shown(*digests: bytes) -> tuple[int, ...]:
        places = zip((2, 5), digests, strict=True)
        return keyed(tokens, [ShownImage(begin, begin + 2, digest, None) for begin, digest in places])

    slots = Slots(1)
    slots.give(slots.take((), "")[0], shown(b"red", b"green"), "")
    assert slots.cached_tokens(shown(b"red", b"green"), "") == 7
    assert slots.cached_tokens(shown(b"red", b"blue"), "") == 5
    assert slots.cached_tokens(shown(b"blue", b"green"), "") == 2
    assert slots.cached_tokens(tokens, "") == 2
