"""Parsing server-sent events: any chunking gives the same events, and buffers are
bounded.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_http import InvalidResponse, SseDecoder

payloads = st.lists(st.text("ab é\u2028:", min_size=1, max_size=8).map(str.encode), max_size=5)


@given(
    payloads, st.sampled_from([b"\n", b"\r", b"\r\n"]), st.lists(st.integers(0, 200), max_size=6)
)
def test_feed_any_split_gives_same_events(wanted: list[bytes], end: bytes, cuts: list[int]) -> None:
    lines = [
        line for data in wanted for line in (b": a comment", b"event: x", b"data: " + data, b"")
    ]
    raw = b"".join(line + end for line in lines)
    stream = SseDecoder()
    found = list[bytes]()
    at = 0
    for cut in [*sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]:
        found += stream.feed(raw[at:cut])
        at = cut
    assert found == wanted


def test_feed_joins_multiline_data() -> None:
    assert SseDecoder().feed(b"data: a\ndata:b\n\n") == [b"a\nb"]


def test_feed_truncated_event_is_dropped() -> None:
    assert SseDecoder().feed(b"data: a\n") == []


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_feed_event_over_limit_in_one_piece_raises(end: bytes):
    stream = SseDecoder(max_event=100)
    assert stream.feed(b"data: a" + end) == [b"a"]
    with pytest.raises(InvalidResponse):
        stream.feed(b"data: " + b"a" * 100 + end)


def test_feed_unterminated_event_over_limit_raises() -> None:
    stream = SseDecoder(max_event=100)
    for _ in range(100):
        stream.feed(b"x")
    with pytest.raises(InvalidResponse):
        stream.feed(b"x")
