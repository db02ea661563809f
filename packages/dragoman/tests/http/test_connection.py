"""Requests and responses on the wire."""

from __future__ import annotations

import asyncio
import gc
import json
from contextvars import ContextVar
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.http.wire import GET, HEAD, Answer, answers, body_of, echo, piece, serving, start, stream

from dragoman.http.body_readers import ChunkedReader
from dragoman.http.exchange import HttpExchange
from dragoman.http.limits import HttpLimits
from dragoman.http.server_connection import HttpConnection
from dragoman.http.wakeup import Wakeup

CLOSE = b"GET / " + HEAD + b"connection: close\r\n\r\n"


def parse_echo(answer: Answer) -> Any:
    assert answer.status == 200, answer
    return json.loads(answer.body)


def post(body: bytes, *fields: bytes, path: bytes = b"/") -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return (
        b"POST "
        + path
        + b" "
        + HEAD
        + b"content-length: %d\r\n" % len(body)
        + lines
        + b"\r\n"
        + body
    )


async def test_request_reaches_application_unchanged() -> None:
    async with serving(echo) as wire:
        output = await wire.ask(
            b"PUT /a%20b/%C3%A9?q=%20&r HTTP/1.1\r\nHost: h\r\nX-Odd:  v \r\nConnection: close\r\n"
            b"Content-Length: 3\r\n\r\nabc"
        )
    assert parse_echo(*answers(output)) == [
        "PUT",
        "/a%20b/%C3%A9",
        "q=%20&r",
        [["host", "h"], ["x-odd", "v"], ["connection", "close"], ["content-length", "3"]],
        "abc",
    ]


async def test_scope_follows_asgi_specification() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await stream(scope, receive, send)

    async with serving(app, root_path="/root") as wire:
        await wire.ask(b"GET http://h/%61?x HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        scope = seen[0]
        assert scope.pop("client")[0] == "127.0.0.1"
        assert scope.pop("server") == ("127.0.0.1", wire.port)
    assert list(scope.pop("extensions")) == ["dragoman.disconnect", "dragoman.direct_write"]
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "GET",
        "root_path": "/root",
        "path": "/root/a",
        "raw_path": b"/root/%61",
        "query_string": b"x",
        "headers": [(b"host", b"h"), (b"connection", b"close")],
        "state": {},
    }


async def test_stream_is_chunked_and_connection_is_reused() -> None:
    async with serving(stream) as wire:
        first, second = answers(await wire.ask(GET, CLOSE))
        assert wire.state.total_requests == 2
    assert (first.status, first.body) == (200, b"data: 1\n\ndata: 2\n\n")
    assert "connection" not in first.headers
    assert second.headers["connection"] == "close"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(echo, HttpLimits(max_buffered_bytes=100)) as wire:
        output = await wire.ask(b"".join(post(b"%d" % number) for number in range(50)) + CLOSE)
    assert [parse_echo(answer)[-1] for answer in answers(output)] == [*map(str, range(50)), ""]


async def test_chunked_request_body_is_received_completely() -> None:
    async with serving(echo) as wire:
        head = b"POST / " + HEAD + b"transfer-encoding: chunked\r\n\r\n"
        output = await wire.ask(
            head + b"3;x=y\r\nabc\r\n00a\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n" + CLOSE
        )
    assert [parse_echo(answer)[-1] for answer in answers(output)] == ["abc0123456789", ""]


async def test_http_1_0_response_is_unchunked_and_closes_connection() -> None:
    async with serving(stream) as wire:
        [answer] = answers(await wire.ask(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"))
    assert answer.body == b"data: 1\n\ndata: 2\n\n"
    assert answer.headers == {"content-type": "text/event-stream", "connection": "close"}


async def test_head_response_has_no_body() -> None:
    async with serving(stream) as wire:
        output = await wire.ask(b"HEAD / " + HEAD + b"\r\n", CLOSE)
    head, get = answers(output, "HEAD")
    assert (head.body, get.body) == (b"", b"data: 1\n\ndata: 2\n\n")


@pytest.mark.parametrize("status", [204, 304])
async def test_bodyless_status_sends_no_body_headers(status: int) -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start(status))
        await send(piece())

    async with serving(app) as wire:
        assert [answer.headers for answer in answers(await wire.ask(GET, CLOSE))] == [
            {},
            {"connection": "close"},
        ]


async def test_expect_100_continue_is_answered_when_the_body_is_read() -> None:
    async with serving(echo) as wire:
        reader, writer = await wire.connect()
        writer.write(b"POST / " + HEAD + b"expect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc" + CLOSE)
        output = await reader.read(-1)
        writer.close()
    assert parse_echo(answers(output)[0])[-1] == "abc"


async def test_response_without_100_continue_closes_connection() -> None:
    """The server could not know whether a body or another request follows."""

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start(401, (b"content-length", b"0")))
        await send(piece())

    async with serving(app) as wire:
        output = await wire.ask(
            b"POST / " + HEAD + b"expect: 100-continue\r\ncontent-length: 30\r\n\r\n"
        )
    assert [(each.status, each.headers["connection"]) for each in answers(output)] == [
        (401, "close")
    ]


async def test_unread_body_is_not_parsed_as_next_request() -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start(413, (b"content-length", b"0")))
        await send(piece())

    async with serving(app) as wire:
        output = await wire.ask(post(GET * 5000), CLOSE)
        assert wire.state.total_requests == 2
    assert [answer.status for answer in answers(output)] == [413, 413]


async def test_client_not_reading_applies_backpressure_to_application() -> None:
    sent = 0

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(start())
        for _number in range(30):
            await send(piece(b"x" * 1_000_000, more=True))
            sent += 1
        await send(piece())

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(CLOSE)
        await reader.readuntil(b"\r\n\r\n")
        for _turn in range(500):
            await asyncio.sleep(0)
        assert sent < 25
        assert len(await reader.read(-1)) > 30_000_000
        writer.close()


async def test_application_not_reading_applies_backpressure_to_client() -> None:
    requested = asyncio.Event()
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        requested.set()
        await go.wait()
        await echo(scope, receive, send)

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(post(b"y" * 20_000_000, b"connection: close"))
        await requested.wait()
        for _turn in range(500):
            await asyncio.sleep(0)
        assert writer.transport.get_write_buffer_size() > 1_000_000
        go.set()
        [answer] = answers(await reader.read(-1))
        writer.close()
    assert len(parse_echo(answer)[-1]) == 20_000_000


@pytest.mark.parametrize("messages", [(), (start(),), (start(), piece(b"x", more=True))])
async def test_application_early_exit_does_not_complete_response(
    messages: tuple[Message, ...],
) -> None:
    async def returns(_: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async def raises(scope: Scope, receive: Receive, send: Send) -> None:
        await returns(scope, receive, send)
        raise ValueError

    for app in (returns, raises):
        async with serving(app) as wire:
            answer = await wire.ask(GET)
        if messages:
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"0\r\n\r\n" not in answer
        else:
            assert [each.status for each in answers(answer)] == [500]


async def test_http_1_0_aborted_response_resets_connection() -> None:
    """The end of the connection is the end of the response: after an ordinary close it
    would look complete.
    """

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await send(piece(b"half", more=True))
        raise ValueError

    async with serving(app) as wire:
        with pytest.raises(ConnectionResetError):
            await wire.ask(b"GET / HTTP/1.0\r\n\r\n")


WRONG: list[tuple[Message, ...]] = [
    (start(200, (b"content-length", b"3")), piece(b"four")),
    (start(200, (b"content-length", b"3")), piece(b"2")),
    (start(200, (b"content-length", b"3")), piece(b"1", more=True), piece(b"234", more=True)),
    (start(204), piece(b"body")),
    (start(), start()),
]


@pytest.mark.parametrize("messages", WRONG)
async def test_invalid_asgi_messages_raise_error_and_close_connection(
    messages: tuple[Message, ...],
) -> None:
    errors: list[RuntimeError] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            try:
                await send(message)
            except RuntimeError as error:
                errors.append(error)

    async with serving(app) as wire:
        await wire.ask(GET)  # it ends
    assert len(errors) == 1


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x", b"a\r\nset-cookie: b")],
        [(b"x\r\ny", b"a")],
        [(b"x y", b"a")],
        [(b"", b"a")],
        [(b"x", b"a\x00")],
        [(b"content-length", b"+3")],
        [(b"content-length", b"3"), (b"content-length", b"3")],
    ],
)
async def test_malformed_application_header_returns_500(
    headers: list[tuple[bytes, bytes]],
) -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, *headers))

    async with serving(app) as wire:
        [answer] = answers(await wire.ask(GET))
    assert (answer.status, answer.body) == (500, b"Internal Server Error")


async def test_finished_application_cannot_access_next_request() -> None:
    """The application may continue while the connection handles the next request."""
    again = asyncio.Event()
    messages: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await stream(scope, receive, send)
        if scope["path"] != "/first":
            again.set()
            return
        await again.wait()
        messages.append((await receive())["type"])
        try:
            await send(piece(b"false"))
        except RuntimeError as error:
            messages.append(type(error))

    async with serving(app) as wire:
        output = await wire.ask(b"GET /first " + HEAD + b"\r\n", CLOSE)
        await wire.wait_until_closed()
    assert [answer.body for answer in answers(output)] == [b"data: 1\n\ndata: 2\n\n"] * 2
    assert messages == ["http.disconnect", RuntimeError]


async def test_finished_requests_leave_no_tasks_or_cyclic_garbage() -> None:
    """Garbage collection pauses every other stream."""
    gc.collect()
    gc.disable()
    try:
        async with serving(echo) as wire:
            before = len(asyncio.all_tasks())
            for _ in range(50):
                chunked = b"POST / " + HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
                await wire.ask(post(b"abc"), chunked, GET, CLOSE)
                await wire.ask(b"nonsense\r\n\r\n")
            await wire.wait_until_closed()
            assert wire.state.total_requests == 200
            assert len(asyncio.all_tasks()) <= before
            await asyncio.sleep(0)
            assert not [
                each
                for each in gc.get_objects()
                if type(each) in (HttpConnection, HttpExchange, Wakeup, ChunkedReader)
            ]
    finally:
        gc.enable()


async def test_requests_of_one_connection_share_no_context() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(who.get())
        who.set("somebody")
        await stream(scope, receive, send)

    async with serving(app) as wire:
        await wire.ask(GET * 2 + CLOSE)
    assert seen == ["nobody"] * 3


async def test_shutdown_closes_idle_and_finishes_active_connections() -> None:
    begun = asyncio.Event()
    go = asyncio.Event()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await go.wait()
        await send(start(200, (b"content-length", b"0")))
        await send(piece())

    async with serving(app) as wire:
        silent, busy, half = [await wire.connect() for _ in range(3)]
        busy[1].write(GET)
        half[1].write(b"GET / HT")
        await begun.wait()
        for connection in list(wire.state.connections):
            connection.shutdown()
        assert await silent[0].read(-1) == b""
        assert await half[0].read(-1) == b""
        go.set()
        [answer] = answers(await busy[0].read(-1))
        for _, writer in (silent, busy, half):
            writer.close()
    assert answer.headers["connection"] == "close"


async def test_upgrade_to_unknown_protocol_is_ignored() -> None:
    """Java's client requests h2c with every request, and sends its body anyway."""
    async with serving(echo) as wire:
        output = await wire.ask(post(b"abc", b"connection: upgrade, close", b"upgrade: h2c"))
    assert parse_echo(*answers(output))[-1] == "abc"


async def test_request_body_is_streamed_to_application() -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        while True:
            message = await receive()
            await send(piece(message["body"].upper(), more=message["more_body"]))
            if not message["more_body"]:
                return

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(b"POST / " + HEAD + b"content-length: 6\r\n\r\nabc")
        assert await reader.readuntil(b"ABC")
        writer.write(b"def")
        assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"\r\n3\r\nDEF\r\n0\r\n\r\n")
        writer.close()


async def test_request_body_is_delivered_once() -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        assert await body_of(receive) == b"abc"
        again = asyncio.create_task(asyncio.wait_for(receive(), 60))
        await asyncio.sleep(0)
        assert not again.done()
        await send(start(200, (b"content-length", b"0")))
        await send(piece())
        assert (await again)["type"] == "http.disconnect"

    async with serving(app) as wire:
        assert [
            each.status for each in answers(await wire.ask(post(b"abc", b"connection: close")))
        ] == [200]
