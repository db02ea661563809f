"""What a recording contains of an exchange, and what it must not contain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.recording.cassette import (
    CassetteError,
    CassetteHeader,
    RecordedChunk,
    RecordedExchange,
    decode_data,
    encode_data,
    encode_line,
    read_cassette,
)
from dragoman.recording.redaction import (
    filter_request_headers,
    filter_response_headers,
    redact_query,
)
from dragoman.recording.replay import hash_request

HEAD = encode_line(CassetteHeader(1, "http://upstream"))


@given(st.binary())
def test_cassette_round_trips_every_byte(raw: bytes) -> None:
    exchange = RecordedExchange(
        at=0.0, method="POST", path="/", body=encode_data(raw), status=200, head_at=0.1, end_at=0.3,
        pieces=[RecordedChunk(0.2, encode_data(raw))],
    )  # fmt: skip
    (found,) = read_cassette([HEAD, encode_line(exchange)])
    assert decode_data(found.body) == raw == decode_data(found.pieces[0].data)
    assert found == exchange


def test_cassette_encodes_text_as_plain_text() -> None:
    line = encode_line(
        RecordedExchange(
            at=0,
            method="GET",
            path="/",
            status=200,
            head_at=0,
            end_at=0,
            pieces=[RecordedChunk(0.5, "dåta")],
        )
    )
    assert '[0.5,"dåta"]' in line.decode()


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "x-api-key",
        "api-key",
        "cookie",
        "proxy-authorization",
        "x-goog-api-key",
        "x-whatever",
    ],
)
def test_request_headers_outside_allow_list_not_recorded(name: str) -> None:
    assert filter_request_headers([(name, "sk-secret"), ("content-type", "application/json")]) == [
        ("content-type", "application/json")
    ]


def test_response_headers_cookies_and_accounts_not_recorded() -> None:
    headers = [
        ("set-cookie", "a"),
        ("openai-organization", "acme"),
        ("x-ratelimit-remaining-requests", "3"),
    ]
    assert filter_response_headers(headers) == [("x-ratelimit-remaining-requests", "3")]


def test_response_headers_token_counts_recorded_but_not_secrets() -> None:
    counts = [
        ("x-ratelimit-remaining-tokens", "9"),
        ("anthropic-ratelimit-tokens-limit", "9"),
        ("x-ratelimit-limit-project-tokens", "9"),
        ("x-generated-tokens", "9"),
    ]
    assert (
        filter_response_headers([*counts, ("x-amz-security-token", "t"), ("openai-project", "p")])
        == counts
    )


def test_redact_query_removes_secrets() -> None:
    assert redact_query("key=AIza1&beta=true&access_token=t&X-Amz-Signature=s") == (
        "key=&beta=true&access_token=&X-Amz-Signature="
    )


def test_hash_request_ignores_order_and_whitespace() -> None:
    same = hash_request("POST", "/v1/x", "a=1&b=2&key=one", b'{"a": 1, "b": [1, 2]}')
    assert hash_request("POST", "/v1/x", "b=2&a=1&key=other", b'{"b":[1,2],"a":1}') == same
    for other in (
        hash_request("POST", "/v1/x", "a=1&b=2", b'{"a": 1, "b": [1, 2]}'),
        hash_request("POST", "/v1/x", "a=1&b=2&key=one", b'{"a": 1, "b": [2, 1]}'),
        hash_request("GET", "/v1/x", "a=1&b=2&key=one", b'{"a": 1, "b": [1, 2]}'),
    ):
        assert other != same
    assert hash_request("POST", "/", "", b"\xff{") != hash_request("POST", "/", "", b"\xff}")


def test_hash_request_accepts_deeply_nested_body() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert hash_request("POST", "/", "", deep) != hash_request("POST", "/", "", b"[" + deep + b"]")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "the header is missing"),
        ([b"\n"], "the header is missing"),
        # Python 3.14 limits recursion by the size of the stack, which may suffice.
        (
            [HEAD, b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
            "line 2: (nested too deeply|Object missing)",
        ),
        ([b'{"id": 1}'], "line 1: Object missing required field"),
        (
            [encode_line(CassetteHeader(2, "x"))],
            "line 1: the recording has version 2; the supported version is 1",
        ),
        ([HEAD, b"{broken"], "line 2"),
        (
            [
                encode_line(
                    RecordedExchange(at=0, method="GET", path="/", status=200, head_at=0, end_at=0)
                )
            ],
            "the header is missing",
        ),
    ],
)
def test_read_cassette_invalid_lines_raise_error(lines: list[bytes], why: str) -> None:
    with pytest.raises(CassetteError, match=why):
        read_cassette(lines)
