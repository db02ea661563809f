"""A megabyte of prompt is read, rendered and tokenised off the event loop: others are answered meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from dragoman.launch import build_models
from dragoman.serving.app import create_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

LONG = "The weather in Oslo is fine today. " * 30_000
ASKED: dict[str, dict[str, Any]] = {
    "/tokenize": {"messages": [{"role": "user", "content": LONG}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1},
    "/v1/completions": {"prompt": LONG, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [{"role": "user", "content": LONG}]},
    "/v1/responses/input_tokens": {"model": "tiny", "input": LONG},
}


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
    assert turns > 200
