"""Recordings are replayed with the same bytes and the same timing."""

from __future__ import annotations

from typing import Literal

import pytest

from dragoman.recording.cassette import Base64Data, RecordedChunk, RecordedExchange
from dragoman.recording.replay import MatchMode, ReplayApp

from .asgi import Receiver, ask, jumping

HOSTS = ("localhost",)


def exchange(
    body: str = "{}",
    *pieces: str,
    path: str = "/v1/chat/completions",
    ended: Literal["complete", "cut", "left"] = "complete",
) -> RecordedExchange:
    return RecordedExchange(
        at=0.0,
        method="POST",
        path=path,
        body=body,
        status=200,
        answer_headers=[("content-type", "text/event-stream"), ("x-request-id", "req-1")],
        head_at=0.25,
        pieces=[RecordedChunk(0.5 + index, piece) for index, piece in enumerate(pieces)],
        end_at=len(pieces) + 0.5,
        ended=ended,
    )


def player(
    *exchanges: RecordedExchange, time_scale: float = 1.0, match: MatchMode = "question"
) -> ReplayApp:
    return ReplayApp(exchanges, hosts=HOSTS, time_scale=time_scale, match_mode=match)


@pytest.mark.parametrize(
    ("scale", "times"), [(1.0, [0.25, 0.5, 1.5, 2.5]), (10.0, [0.025, 0.05, 0.15, 0.25])]
)
def test_player_sends_bytes_at_recorded_times(scale: float, times: list[float]) -> None:
    received = jumping(ask(player(exchange("{}", "data: a\n\n", "data: b\n\n"), time_scale=scale)))
    assert (received.status, received.body) == (200, b"data: a\n\ndata: b\n\n")
    assert received.headers == {"content-type": "text/event-stream", "x-request-id": "req-1"}
    assert received.times == times
    assert received.finished


def test_player_times_start_at_end_of_request() -> None:
    assert jumping(ask(player(exchange("{}", "a")), body_after=2.0)).times == [2.25, 2.5, 3.5]


def test_player_deeply_nested_request_returns_404() -> None:
    assert jumping(ask(player(exchange("{}", "a")), body=b"[" * 100_000)).status == 404


def test_player_infinite_time_scale_sends_immediately() -> None:
    assert jumping(ask(player(exchange("{}", "a"), time_scale=float("inf")))).times == [0.0] * 3


def test_player_slow_client_catches_up_with_schedule() -> None:
    """Deadlines are absolute: sleeping between pieces would delay all later ones."""
    received = jumping(
        ask(player(exchange("{}", "a", "b", "c", "d")), receiver=Receiver(slow={1: 1.7}))
    )
    assert received.times == [0.25, 0.5, 2.2, 2.5, 3.5, 4.5]


def test_player_replays_binary_bytes() -> None:
    piece = RecordedChunk(0.1, Base64Data(b"\xff\x00"))
    exchange = RecordedExchange(
        at=0, method="POST", path="/x", body="{}", status=200, head_at=0, pieces=[piece], end_at=0.1
    )
    assert jumping(ask(player(exchange), "/x")).body == b"\xff\x00"


def test_player_repeated_request_cycles_through_responses() -> None:
    again = player(
        exchange('{"a": 1}', "one"), exchange("{}", "other"), exchange('{"a": 1}', "two")
    )
    answers = [jumping(ask(again, body=b'{"a":1}')).body for _ in range(3)]
    assert answers == [b"one", b"two", b"one"]


def test_player_unrecorded_request_returns_404() -> None:
    received = jumping(ask(player(exchange("{}", "a")), body=b'{"other": 1}'))
    assert received.status == 404
    assert b"no response for this POST /v1/chat/completions" in received.body


def test_player_match_by_path_ignores_body() -> None:
    again = player(exchange("{}", "one"), exchange("[]", "two"), match="path")
    assert [jumping(ask(again, body=b'{"now": 3}')).body for _ in range(2)] == [b"one", b"two"]
    assert jumping(ask(again, "/v1/models", method="GET")).status == 404


def test_player_replays_truncated_response_truncated() -> None:
    received = jumping(ask(player(exchange("{}", "half", ended="cut"))))
    assert received.body == b"half"
    assert not received.finished


def test_player_skips_exchange_ended_by_client_disconnect() -> None:
    assert jumping(ask(player(exchange("{}", "half", ended="left")))).status == 404


def test_player_stops_when_client_disconnects() -> None:
    received = jumping(ask(player(exchange("{}", *"abcdefgh")), leaves_after=2.0))
    assert received.body == b"ab"


def test_player_foreign_host_header_returns_421() -> None:
    """DNS rebinding: a web page must not read recordings."""
    assert jumping(ask(player(exchange("{}", "a")), headers={"host": "evil.example"})).status == 421


def test_player_zero_time_scale_rejected() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        player(time_scale=0.0)
