"""The direct write extension: it reports the connection's state, and writes the same
bytes as `send`.
"""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.http.wire import GET, HEAD, answers, body_of, piece, serving, start

from dragoman.http.asgi_extensions import DirectResponse, find_direct_response


def find_direct(scope: Scope, send: Send) -> DirectResponse:
    direct = find_direct_response(scope, send)
    assert direct is not None
    return direct


@pytest.mark.parametrize(
    "scope", [{"extensions": {"tls": {}}}, {"type": "http"}, {"extensions": None}]
)
def test_find_direct_response_without_extension_returns_none(scope: Scope) -> None:
    async def send(_: Message) -> None: ...

    assert find_direct_response(scope, send) is None


async def test_direct_response_is_unavailable_behind_middleware() -> None:
    """What is written directly would pass by a middleware that edits messages."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        assert find_direct_response(scope, send) is not None

        async def edit(message: Message) -> None:
            await send(message)

        assert find_direct_response(scope, edit) is None
        await edit(start())
        await edit(piece(b"a"))

    async with serving(app) as wire:
        (answer,) = answers(
            await wire.ask(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        )
    assert answer.body == b"a"


async def test_direct_write_and_send_form_one_body_and_keep_alive() -> None:
    results: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        direct = find_direct(scope, send)
        results.append(direct.can_write)
        await send(start())
        results.append(direct.can_write)
        direct.write(b"a")
        await send(piece(b"b", more=True))
        direct.write(b"")
        direct.write(b"c")
        await send(piece(b"d"))
        results.append(direct.can_write)
        direct.write(b"too late")

    async with serving(app) as wire:
        last = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        first, second = answers(await wire.ask(GET + last))
    assert first.body == second.body == b"abcd"
    assert results == [False, True, False] * 2


async def test_direct_write_to_head_request_sends_no_body() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        await send(start())
        find_direct(scope, send).write(b"a")
        await send(piece(b"b"))

    async with serving(app) as wire:
        output = await wire.ask(b"HEAD / " + HEAD + b"connection: close\r\n\r\n")
    assert output.endswith(b"\r\n\r\n")


async def test_direct_write_over_content_length_closes_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        await send(start(200, (b"content-length", b"3")))
        with pytest.raises(RuntimeError, match="longer"):
            find_direct(scope, send).write(b"four")

    async with serving(app) as wire:
        assert (await wire.ask(GET)).endswith(b"\r\n\r\n")


async def test_direct_write_stops_when_client_does_not_read() -> None:
    written = 0
    stopped = asyncio.Event()
    reads = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal written
        await body_of(receive)
        await send(start())
        direct = find_direct(scope, send)
        while direct.can_write:
            direct.write(b"x" * 65_536)
            written += 65_536
        stopped.set()
        await reads.wait()
        # `send` waits until the client has read.
        await send(piece(b"y", more=True))
        assert direct.can_write
        direct.write(b"z")
        await send(piece())

    async with serving(app) as wire:
        reader, writer = await wire.connect()
        writer.write(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        await stopped.wait()
        reads.set()
        (answer,) = answers(await reader.read(-1))
        writer.close()
    assert answer.body == b"x" * written + b"yz"


async def test_headers_are_sent_before_body() -> None:
    read = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        assert not find_direct(scope, send).can_write
        await send(start())
        await read.wait()
        await send(piece())

    async with serving(app) as wire, asyncio.timeout(60):
        reader, writer = await wire.connect()
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        read.set()
        assert await reader.readuntil(b"0\r\n\r\n")
        writer.close()


async def test_direct_write_is_unavailable_after_disconnect() -> None:
    begun = asyncio.Event()
    left = asyncio.Event()
    results: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        await send(start())
        begun.set()
        assert (await receive())["type"] == "http.disconnect"
        results.append(find_direct(scope, send).can_write)
        find_direct(scope, send).write(b"nobody reads this")
        left.set()

    async with serving(app) as wire:
        _, writer = await wire.connect()
        writer.write(GET)
        await begun.wait()
        writer.close()
        await left.wait()
    assert results == [False]


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_direct_respond_writes_whole_response(method: bytes) -> None:
    results: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        direct = find_direct(scope, send)
        results.append(direct.can_respond)
        direct.respond(201, [(b"content-length", b"5")], b"whole")
        results.append(direct.can_respond)
        direct.respond(200, [], b"too late")

    async with serving(app) as wire:
        request = method + b" / " + HEAD
        output = await wire.ask(request + b"\r\n" + request + b"connection: close\r\n\r\n")
    assert output.count(b"HTTP/1.1 201 Created\r\n") == 2
    assert output.count(b"content-length: 5\r\n") == 2
    assert output.count(b"\r\n\r\nwhole") == (2 if method == b"GET" else 0)
    assert results == [True, False] * 2


async def test_direct_respond_is_unavailable_once_headers_are_sent() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        await send(start())
        assert not find_direct(scope, send).can_respond
        await send(piece(b"a"))

    async with serving(app) as wire:
        (answer,) = answers(
            await wire.ask(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        )
    assert answer.body == b"a"


async def test_held_pieces_are_written_with_next_piece() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        direct = find_direct(scope, send)
        direct.begin(200, [(b"x-test", b"1")])
        direct.hold(b"a")
        direct.hold(b"")
        direct.write(b"b")
        direct.hold(b"c")
        await send(piece(b"d"))
        direct.hold(b"too late")
        direct.flush()

    async with serving(app) as wire, asyncio.timeout(60):
        reader, writer = await wire.connect(GET)
        output = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
    head, _, body = output.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nx-test: 1\r\n" in head
    assert body == b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n1\r\nd\r\n0\r\n\r\n"


async def test_flush_writes_held_headers_and_pieces() -> None:
    read = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        direct = find_direct(scope, send)
        direct.begin(200, [])
        assert direct.can_write
        direct.hold(b"a")
        direct.flush()
        direct.flush()
        await read.wait()
        await send(piece())

    async with serving(app) as wire, asyncio.timeout(60):
        reader, writer = await wire.connect(GET)
        assert (await reader.readuntil(b"1\r\na\r\n")).startswith(b"HTTP/1.1 200")
        read.set()
        assert await reader.readuntil(b"\r\n\r\n") == b"0\r\n\r\n"
        writer.close()


async def test_held_pieces_are_written_before_failure() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        direct = find_direct(scope, send)
        direct.begin(200, [])
        direct.hold(b"a")
        raise ValueError

    async with serving(app) as wire:
        output = await wire.ask(GET)
    assert output.endswith(b"\r\n\r\n1\r\na\r\n")
