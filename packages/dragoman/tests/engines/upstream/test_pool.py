"""The choice of an upstream for a request."""

from __future__ import annotations

from collections import Counter

from dragoman.core.message import Message, Role, Text
from dragoman.core.request import Conversation
from dragoman.engines.upstream import Upstream
from dragoman.engines.upstream.upstream_pool import UpstreamPool, build_prefix


def pool(*weights: float) -> UpstreamPool:
    return UpstreamPool(
        [Upstream(f"http://{index}/v1", weight) for index, weight in enumerate(weights)]
    )


def prefixes(number: int) -> list[bytes]:
    return [b"conversation %d" % index for index in range(number)]


def test_choose_distributes_prefixes_by_weight() -> None:
    upstream_pool = pool(3, 1)
    found = Counter(upstream_pool.choose(prefix) for prefix in prefixes(2000))
    assert 0.70 < found[0] / 2000 < 0.80


def test_choose_moves_only_prefixes_of_down_upstream() -> None:
    upstream_pool = pool(1, 1, 1)
    before = {prefix: upstream_pool.choose(prefix) for prefix in prefixes(300)}
    upstream_pool.set_up(1, up=False)
    after = {prefix: upstream_pool.choose(prefix) for prefix in prefixes(300)}
    assert 1 not in after.values()
    assert all(after[prefix] == index for prefix, index in before.items() if index != 1)


def test_choose_skips_busy_upstream() -> None:
    upstream_pool = pool(1, 1)
    first = upstream_pool.choose(b"popular")
    assert first is not None
    upstream_pool.running[first] = 10
    assert upstream_pool.choose(b"popular") == 1 - first


def test_choose_returns_none_if_all_are_down_or_tried() -> None:
    upstream_pool = pool(1, 1)
    assert upstream_pool.choose(b"x", {0, 1}) is None
    upstream_pool.set_up(0, up=False)
    upstream_pool.set_up(1, up=False)
    assert (upstream_pool.choose(b"x"), upstream_pool.is_ready) == (None, False)


def test_build_prefix_is_equal_for_all_turns() -> None:
    first = (Message(Role.SYSTEM, (Text("Be kind."),)), Message(Role.USER, (Text("hi"),)))
    later = (*first, Message(Role.ASSISTANT, (Text("hello"),)), Message(Role.USER, (Text("bye"),)))
    assert build_prefix(Conversation(first)) == build_prefix(Conversation(later))
    assert build_prefix(Conversation(first)) != build_prefix(Conversation(first[1:]))


def test_upstream_repr_hides_api_key() -> None:
    assert "secret" not in repr(Upstream("http://x", 1.0, "secret"))
