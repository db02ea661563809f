"""A prompt of 400 kB is read, rendered and tokenised off the event loop: others are answered meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from dragoman.launch import build_models
from dragoman.serving.app import create_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from tests.serving.house import tokenizer

LONG = "The weather in Oslo is fine today. " * 12_000
ASKED: dict[str, dict[str, Any]] = {
    "/tokenize": {"messages": [{"role": "user", "content": LONG}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1},
    "/v1/completions": {"prompt": LONG, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [{"role": "user", "content": LONG}]},
    "/v1/responses/input_tokens": {"model": "tiny", "input": LONG},
}


async def test_tokenising_lets_others_run():
    """The library holds the interpreter while it encodes one text, and not while it encodes several."""
    lent = tokenizer()
    encoding = asyncio.create_task(anyio.to_thread.run_sync(lambda: lent.encode(LONG, special=False)))
    turns = 0
    while not encoding.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(await encoding) > 100_000
    assert turns > 1_000


@pytest.mark.parametrize("path", ASKED)
async def test_others_get_their_turns_while_a_great_prompt_is_made_ready(path: str):
    """Counted in turns of the loop, of which few would fit beside work that is done on it."""
    app = create_app(build_models(Settings(), SystemClock()))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client:
        asking = asyncio.create_task(client.post(path, json=ASKED[path]))
        turns = 0
        while not asking.done():
            turns += 1
            await asyncio.sleep(0)
    assert (await asking).status_code in (200, 400)
    assert turns > 100
