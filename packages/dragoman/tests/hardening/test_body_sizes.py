"""Sizes of compressed and decoded bodies are limited (vLLM CVE-2025-48956; trap 28:
zstd and gzip bodies).
"""

import asyncio
import gzip
import zlib
from collections.abc import AsyncGenerator, Callable

import brotli
import httpx2
import pytest
import zstandard
from starlette.datastructures import Headers
from starlette.types import Message, Receive
from tests.serving.harness import build_server

from dragoman.core.errors import BodyTooLarge, Overloaded, RequestError, UnsupportedMediaType
from dragoman.engines.scripted import Say, ScriptEntry
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.body_memory import BodyMemoryBudget, BodyMemoryShare
from dragoman.serving.clock import SystemClock
from dragoman.serving.disconnect import ClientGone
from dragoman.serving.request_body import read_body
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

LIMIT = 1000


def pieces(*bodies: bytes) -> Receive:
    messages: list[Message] = [
        {"type": "http.request", "body": body, "more_body": index < len(bodies) - 1}
        for index, body in enumerate(bodies)
    ]

    async def receive() -> Message:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    return receive


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


CODINGS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("zstd", zstandard.compress),
    ("br", brotli.compress),
]


async def test_read_body_joins_chunks() -> None:
    assert await read_body(pieces(b"ab", b"", b"c"), Headers(), LIMIT) == b"abc"


@pytest.mark.parametrize(("coding", "encode"), CODINGS)
async def test_read_body_decodes_content_encoding(
    coding: str, encode: Callable[[bytes], bytes]
) -> None:
    headers = Headers({"content-encoding": coding.upper()})
    assert await read_body(pieces(encode(b"hello")), headers, LIMIT) == b"hello"


@pytest.mark.parametrize(("coding", "encode"), CODINGS)
async def test_read_body_decompression_bomb_returns_413(
    coding: str, encode: Callable[[bytes], bytes]
) -> None:
    bomb = encode(b"\0" * 200_000)
    assert len(bomb) < LIMIT
    with pytest.raises(BodyTooLarge):
        await read_body(pieces(bomb), Headers({"content-encoding": coding}), LIMIT)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br"])
async def test_read_body_corrupt_encoding_returns_400(coding: str) -> None:
    with pytest.raises(RequestError) as caught:
        await read_body(pieces(b"not that"), Headers({"content-encoding": coding}), LIMIT)
    assert caught.value.status == 400


@pytest.mark.parametrize(("coding", "encode"), CODINGS)
async def test_read_body_truncated_encoding_returns_400(
    coding: str, encode: Callable[[bytes], bytes]
) -> None:
    full = encode(bytes(range(256)) * 3)
    with pytest.raises(RequestError):
        await read_body(
            pieces(full[: len(full) // 2]), Headers({"content-encoding": coding}), LIMIT
        )


async def test_read_body_unknown_encoding_returns_415() -> None:
    with pytest.raises(UnsupportedMediaType, match="gzip"):
        await read_body(pieces(b"x"), Headers({"content-encoding": "snappy"}), LIMIT)


@pytest.mark.parametrize("headers", [{"content-length": "1001"}, {"content-length": "9" * 40}, {}])
async def test_read_body_over_size_limit_returns_413(headers: dict[str, str]) -> None:
    with pytest.raises(BodyTooLarge):
        await read_body(pieces(b"x" * 600, b"x" * 600), Headers(headers), LIMIT)


async def test_read_body_client_disconnect_raises_client_gone() -> None:
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await read_body(gone, Headers(), LIMIT)


async def test_body_memory_budget_bounds_concurrent_bodies() -> None:
    budget = BodyMemoryBudget(LIMIT)
    first = BodyMemoryShare(budget)
    second = BodyMemoryShare(budget)
    await read_body(pieces(b"x" * 600), Headers(), LIMIT, first)
    with pytest.raises(Overloaded) as rejected:
        await read_body(pieces(b"x" * 300, b"x" * 300), Headers(), LIMIT, second)
    assert (rejected.value.status, rejected.value.retry_after) == (503, 1.0)
    second.release()
    assert budget.used == 600
    first.release()
    assert len(await read_body(pieces(b"x" * 600), Headers(), LIMIT, second)) == 600


@pytest.mark.parametrize(
    ("path", "content_type"),
    [("/update_weights", "application/octet-stream"), ("/v1/completions", "application/json")],
)
async def test_body_memory_budget_counts_partial_uploads(path: str, content_type: str) -> None:
    """Weights may be a gigabyte, which no memory budget counted."""
    app = build_asgi_app(
        build_models(Settings(), SystemClock()),
        options=ServingOptions(max_inflight_body_bytes=LIMIT),
    )
    arriving = asyncio.Event()

    async def send_slowly() -> AsyncGenerator[bytes]:
        yield b"x" * (LIMIT - 100)
        arriving.set()
        await asyncio.Event().wait()

    headers = {"content-type": content_type}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        first = asyncio.create_task(client.post(path, content=send_slowly(), headers=headers))
        await arriving.wait()
        rejected = await client.post(path, content=b"x" * 200, headers=headers)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "overloaded")


async def test_body_memory_budget_admits_single_body_up_to_size_limit() -> None:
    share = BodyMemoryShare(BodyMemoryBudget(10))
    assert len(
        await read_body(
            pieces(gzip.compress(b"x" * LIMIT)), Headers({"content-encoding": "gzip"}), LIMIT, share
        )
    )


async def test_body_memory_share_empty_release_keeps_budget_exceeded() -> None:
    budget = BodyMemoryBudget(10)
    large = BodyMemoryShare(budget)
    none = BodyMemoryShare(budget)
    large.reserve(LIMIT)
    none.release()
    with pytest.raises(Overloaded):
        none.reserve(1)
    large.release()
    assert budget.used == 0


async def test_body_memory_share_counts_decompressed_size() -> None:
    """During decoding it counts with its maximum size, since the actual size is
    unknown.
    """
    budget = BodyMemoryBudget(LIMIT + 100)
    small = BodyMemoryShare(budget)
    other = BodyMemoryShare(budget)
    body = pieces(gzip.compress(b"x" * 500))
    await read_body(body, Headers({"content-encoding": "gzip"}), LIMIT, small)
    assert budget.used == 500
    with pytest.raises(Overloaded):
        await read_body(
            pieces(gzip.compress(b"x")), Headers({"content-encoding": "gzip"}), LIMIT, other
        )


def test_body_memory_of_one_key_leaves_share_of_other() -> None:
    budget = BodyMemoryBudget(LIMIT, lambda: ("greedy", "other"))
    # Half of the limit is reserved for both in equal parts.
    greedy = [BodyMemoryShare(budget, "greedy") for _ in range(3)]
    for share in greedy:
        share.reserve(LIMIT // 4)
    with pytest.raises(Overloaded):
        greedy[0].reserve(LIMIT // 4 + 1)
    other = BodyMemoryShare(budget, "other")
    other.reserve(LIMIT // 4)
    with pytest.raises(Overloaded):
        other.reserve(LIMIT // 4 + 1)
    for share in (*greedy, other):
        share.release()
    assert budget.used == 0


@pytest.mark.parametrize("status", [200, 400])
async def test_body_memory_budget_is_released_after_response(status: int) -> None:
    options = ServingOptions(max_inflight_body_bytes=300)
    server = build_server(ScriptEntry((Say("hi"),), repeat=True), options=options)
    messages = [{"role": "user", "content": "x" * 200}] if status == 200 else "x" * 200
    for _ in range(3):
        answer = await server.post("/v1/chat/completions", {"model": "m", "messages": messages})
        assert answer.status_code == status


async def test_request_over_100_headers_returns_431() -> None:
    server = build_server(ScriptEntry((Say("hi"),)))
    few, many = ({f"x-{n}": "" for n in range(count)} for count in (80, 100))
    assert (await server.get("/v1/models", few)).status_code == 200
    rejected = await server.get("/v1/models", many)
    assert (rejected.status_code, set(rejected.json()["error"])) == (
        431,
        {"message", "type", "param", "code"},
    )
