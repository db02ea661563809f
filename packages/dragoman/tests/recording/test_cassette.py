"""What a recording contains of an exchange, and what it must not contain."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.recording.cassette import (
    CassetteError,
    CassetteHeader,
    CassetteWriter,
    RecordedChunk,
    RecordedExchange,
    decode_data,
    encode_data,
    encode_line,
    read_cassette,
)
from dragoman.recording.redaction import (
    RESPONSE_SECRETS,
    filter_request_headers,
    filter_response_headers,
    redact_body,
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


@pytest.mark.parametrize(
    "name",
    [
        "authentication-info",
        "etag",
        "link",
        "location",
        "openai-organization",
        "set-cookie",
        "www-authenticate",
        "x-api-key",
        "x-auth-tokens",
        "x-credential",
        "x-jwt",
        "x-ms-client-principal",
        "x-password",
        "x-ratelimit-secret",
        "x-session",
        "x-user-email",
        "x-whatever",
    ],
)
def test_response_headers_outside_allow_list_not_recorded(name: str) -> None:
    assert filter_response_headers([(name, "sk-secret"), ("content-type", "text/plain")]) == [
        ("content-type", "text/plain")
    ]


@pytest.mark.parametrize(
    "name",
    ["bearer", "code", "e-mail", "jwt", "pass", "pwd", "session", "state", "X-Amz-Signature"],
)
def test_redact_query_unknown_parameters_lose_values(name: str) -> None:
    assert redact_query(f"{name}=sk-secret&api-version=1") == f"{name}=&api-version=1"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            b'{"tools": [{"type": "mcp", "authorization": "s", "headers": {"x-a": "s", "n": 1}}]}',
            b'{"tools":[{"type":"mcp","authorization":"","headers":{"x-a":"","n":1}}]}',
        ),
        (
            b'{"mcp_servers": [{"authorization_token": "s", "name": "a"}]}',
            b'{"mcp_servers":[{"authorization_token":"","name":"a"}]}',
        ),
        (b'{"api_\\u006bey": ["s", {"a": "s"}]}', b'{"api_key":["",{"a":""}]}'),
        (b'{"x": NaN, "apiKey": "s", "y": "\\ud800"}', b'{"x":NaN,"apiKey":"","y":"\\ud800"}'),
    ],
)
def test_redact_body_removes_strings_of_secret_fields(body: bytes, expected: bytes) -> None:
    assert redact_body(body) == expected
    assert redact_body(expected) == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "the password is: token"}]}',
        b'{"properties": {"password": {"type": "string"}, "headers": {"type": "object"}} }',
        b'{"logprobs": [{"token": "a"}], "prompt_cache_key": "k"}',
        b"authorization: s",
        b'{"authorization": "s"',
    ],
)
def test_redact_body_other_bodies_are_unchanged(body: bytes) -> None:
    assert redact_body(body) == body


def test_redact_body_deeply_nested_secret_is_dropped() -> None:
    deep = b'{"password":' * 100_000 + b'"s"' + b"}" * 100_000
    assert b'"s"' not in redact_body(deep)


def test_redact_body_response_keeps_tool_input() -> None:
    body = b'{"content": [{"input": {"password": "p"}}]}'
    assert redact_body(body, RESPONSE_SECRETS) == body
    secret = b'{"client_secret": {"value": "s", "expires_at": 1}}'
    expected = b'{"client_secret":{"value":"","expires_at":1}}'
    assert redact_body(secret, RESPONSE_SECRETS) == expected


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


def encode_response(**fields: Any) -> bytes:
    exchange = {"at": 0, "method": "GET", "path": "/", "status": 200, "head_at": 0, "end_at": 0}
    return msgspec.json.encode({**exchange, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"status": 99999},
        {"status": 0},
        {"status": -1},
        {"status": 101},
        {"head_at": -1},
        {"end_at": 1e300},
        {"pieces": [[1e300, "a"]]},
        {"status": 204, "pieces": [[0, "a"]]},
        {"status": 304, "pieces": [[0, "a"]]},
        {"answer_headers": [["a\r\nb", "c"]]},
        {"answer_headers": [["a", "b\r\nc: d"]]},
        {"answer_headers": [["a", "\0"]]},
        {"answer_headers": [["", "a"]]},
        {"answer_headers": [["a", "\u20ac"]]},
        {"answer_headers": [["Transfer-Encoding", "chunked"]]},
        {"answer_headers": [["connection", "close"]]},
        {"answer_headers": [["Content-Length", "7"]], "pieces": [[0, "a"]]},
        {"answer_headers": [["content-length", "-1"]]},
    ],
)
def test_read_cassette_unsendable_response_raises(fields: dict[str, Any]) -> None:
    with pytest.raises(CassetteError, match=r"^line 2: ") as raised:
        read_cassette([HEAD, encode_response(**fields)])
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "HEAD", "answer_headers": [["content-length", "7"]]},
        {"ended": "cut", "answer_headers": [["content-length", "7"]], "pieces": [[0, "a"]]},
        {"answer_headers": [["content-length", "1"]], "pieces": [[0, "a"]]},
        {"status": 599, "end_at": 1e6},
    ],
)
def test_read_cassette_unusual_responses_are_read(fields: dict[str, Any]) -> None:
    assert len(read_cassette([HEAD, encode_response(**fields)])) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_cassette_new_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    umask = os.umask(0)
    try:
        CassetteWriter(path, "http://upstream").close()
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600


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
