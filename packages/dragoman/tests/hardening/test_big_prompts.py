"""A prompt of 400 kB is read, rendered and tokenized off the event loop, so that other
requests proceed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from tests.serving.harness import load_tiny_tokenizer

from dragoman.launch import build_models
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.prompts.render import Renderer
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

LONG = "The weather in Oslo is fine today. " * 12_000
BODIES: dict[str, dict[str, Any]] = {
    "/tokenize": {"messages": [{"role": "user", "content": LONG}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1},
    "/v1/completions": {"prompt": LONG, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [{"role": "user", "content": LONG}]},
    "/v1/responses/input_tokens": {"model": "tiny", "input": LONG},
}


async def count_turns(work: Callable[[], Coroutine[Any, Any, Any]]) -> int:
    """Count the iterations of the event loop beside some work."""
    task = asyncio.create_task(work())
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    task.result()
    return turns


async def check_turns(work: Callable[[], Coroutine[Any, Any, Any]], at_least: int) -> None:
    """Check that the event loop goes on beside some work. On a busy machine its thread may
    not run during the work, but not each time; work that blocks it leaves at most 6.
    """
    counts: list[int] = []
    while max(counts, default=0) < at_least and len(counts) < 20:
        counts.append(await count_turns(work))
    assert max(counts) >= at_least, counts


async def test_tokenizing_does_not_block_other_threads():
    """The library holds the GIL while it encodes one text, but not while it encodes
    several.
    """
    tokenizer = load_tiny_tokenizer()

    async def encode() -> None:
        ids = await anyio.to_thread.run_sync(lambda: tokenizer.encode(LONG, special=False))
        assert len(ids) > 100_000

    # Measured: 100,000 iterations, or 7,000 if the library holds the GIL.
    await check_turns(encode, 20_000)


@pytest.mark.parametrize("path", BODIES)
async def test_large_prompt_preparation_does_not_block_event_loop(path: str):
    """Counted in iterations of the event loop: few would run if the work blocked it."""
    app = build_asgi_app(build_models(Settings(), SystemClock()))
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:

        async def ask() -> None:
            assert (await client.post(path, json=BODIES[path])).status_code in (200, 400)

        await check_turns(ask, 50)


CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a":"' + "x" * 2_000_000 + '"}'},
}
HI = {"role": "user", "content": "hi"}
TOO_LARGE: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {"prompt": "word " * 2_000_000}, "prompt"),
    ("/tokenize", {"messages": [{"role": "user", "content": "word " * 2_000_000}]}, "messages"),
    ("/tokenize", {"messages": [HI] * 30_000}, "messages"),
    ("/detokenize", {"tokens": [1] * 200_000}, "tokens"),
    (
        "/v1/messages/count_tokens",
        {"model": "tiny", "messages": [HI, {**HI, "role": "assistant"}] * 15_000},
        "messages",
    ),
    ("/v1/responses/input_tokens", {"model": "tiny", "input": "word " * 2_000_000}, "input"),
    ("/v1/chat/completions", {"messages": [HI] * 40_000}, "messages"),
    ("/v1/chat/completions", {"messages": [HI] * 100_001}, "messages"),
    (
        "/v1/chat/completions",
        {"messages": [HI, {"role": "assistant", "tool_calls": [CALL]}]},
        "messages",
    ),
    ("/v1/completions", {"prompt": [1] * 1_000_000}, "prompt"),
    # Truncation happens after rendering, so it does not reduce the work of rendering.
    ("/v1/completions", {"prompt": "word " * 2_000_000, "truncate_prompt_tokens": 5}, "prompt"),
    ("/v1/chat/completions", {"messages": [HI] * 30_000, "truncate_prompt_tokens": 5}, "messages"),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "word " * 2_000_000}],
            "truncate_prompt_tokens": -1,
        },
        "messages",
    ),
    ("/v1/responses", {"input": "word " * 2_000_000, "truncation": "auto"}, "input"),
    ("/v1/embeddings", {"input": "word " * 2_000_000, "truncate_prompt_tokens": 5}, "input"),
    (
        "/v1/rerank",
        {"query": "x", "documents": ["word " * 2_000_000], "truncate_prompt_tokens": 5},
        "documents",
    ),
    ("/v1/score", {"queries": "x", "documents": ["word " * 2_000_000]}, "documents"),
]


@pytest.mark.parametrize(("path", "body", "param"), TOO_LARGE)
async def test_oversized_prompt_is_rejected_before_rendering(
    path: str, body: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
):
    """27 MB to /tokenize took 31 s and 1.4 GB, 300,000 messages 20 s, a tool call of 5
    MB 14 s.
    """
    models = build_models(Settings(), SystemClock())
    worked: list[object] = []

    def work(*args: object, **_: object) -> None:
        worked.append(args)

    for name in ("encode", "decode"):
        monkeypatch.setattr(HfTokenizer, name, work)
    monkeypatch.setattr(Renderer, "render", work)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(build_asgi_app(models)), base_url="http://localhost"
    ) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 400
    assert worked == []
    error = answer.json()["error"]
    assert param in (error.get("param") or error["message"])
    assert any(char.isdigit() for char in error["message"])
