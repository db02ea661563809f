"""What is kept of an exchange, and what never is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.recording.tape import (
    Exchange,
    Head,
    Piece,
    TapeError,
    data_of,
    kept_answer_headers,
    kept_headers,
    kept_query,
    question,
    raw_of,
    read,
    written,
)

HEAD = written(Head(1, "http://upstream"))


@given(st.binary())
def test_every_byte_comes_back(raw: bytes) -> None:
    exchange = Exchange(
        at=0.0, method="POST", path="/", body=data_of(raw), status=200, head_at=0.1, end_at=0.3,
        pieces=[Piece(0.2, data_of(raw))],
    )  # fmt: skip
    (found,) = read([HEAD, written(exchange)])
    assert raw_of(found.body) == raw == raw_of(found.pieces[0].data)
    assert found == exchange


def test_text_is_written_as_text() -> None:
    line = written(Exchange(at=0, method="GET", path="/", status=200, head_at=0, end_at=0, pieces=[Piece(0.5, "dåta")]))
    assert '[0.5,"dåta"]' in line.decode()


@pytest.mark.parametrize(
    "name", ["authorization", "x-api-key", "api-key", "cookie", "proxy-authorization", "x-goog-api-key", "x-whatever"]
)
def test_a_header_that_is_not_known_to_be_harmless_is_not_kept(name: str) -> None:
    assert kept_headers([(name, "sk-secret"), ("content-type", "application/json")]) == [
        ("content-type", "application/json")
    ]


def test_neither_are_cookies_and_accounts_of_an_answer() -> None:
    told = [("set-cookie", "a"), ("openai-organization", "acme"), ("x-ratelimit-remaining-requests", "3")]
    assert kept_answer_headers(told) == [("x-ratelimit-remaining-requests", "3")]


def test_neither_are_secrets_of_a_query() -> None:
    assert kept_query("key=AIza1&beta=true&access_token=t&X-Amz-Signature=s") == (
        "key=&beta=true&access_token=&X-Amz-Signature="
    )


def test_the_same_question_is_the_same_however_it_is_written() -> None:
    same = question("POST", "/v1/x", "a=1&b=2&key=one", b'{"a": 1, "b": [1, 2]}')
    assert question("POST", "/v1/x", "b=2&a=1&key=other", b'{"b":[1,2],"a":1}') == same
    for other in (
        question("POST", "/v1/x", "a=1&b=2", b'{"a": 1, "b": [1, 2]}'),
        question("POST", "/v1/x", "a=1&b=2&key=one", b'{"a": 1, "b": [2, 1]}'),
        question("GET", "/v1/x", "a=1&b=2&key=one", b'{"a": 1, "b": [1, 2]}'),
    ):
        assert other != same
    assert question("POST", "/", "", b"\xff{") != question("POST", "/", "", b"\xff}")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([b'{"id": 1}'], "line 1: Object missing required field"),
        ([written(Head(2, "x"))], "line 1: the recording has version 2; the supported version is 1"),
        ([HEAD, b"{broken"], "line 2"),
        ([written(Exchange(at=0, method="GET", path="/", status=200, head_at=0, end_at=0))], "the header is missing"),
    ],
)
def test_what_is_no_recording_is_told(lines: list[bytes], why: str) -> None:
    with pytest.raises(TapeError, match=why):
        read(lines)
