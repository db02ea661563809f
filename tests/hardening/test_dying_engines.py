"""An engine dies in the middle of an answer: what each dialect says, what the server says, and how it goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from dragoman.pipeline.models import EventBackend, Models, ServedModel
from dragoman.serving.app import create_app
from tests.pipeline.mortal import Clock, Mortal, never
from tests.serving.house import tokenizer

HI = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 50},
}
ENDS = {
    "/v1/chat/completions": (b'data: {"error":', b"[DONE]"),
    "/v1/completions": (b'data: {"error":', b"[DONE]"),
    "/v1/responses": (b"event: response.failed", b"response.completed"),
    "/v1/messages": (b"event: error", b"message_stop"),
}


@pytest.mark.parametrize("path", ASKED)
async def test_an_engine_that_dies_in_mid_answer(path: str) -> None:
    engine, clock = Mortal(tokenizer()), Clock()
    models = Models([ServedModel("m", EventBackend(engine), 4096, 0)], clock=clock, sleep=never)
    (place,) = models.slots
    await models.start()
    transport = httpx2.ASGITransport(create_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        ask = {"model": "m", **ASKED[path]}
        engine.die_at = 4
        answer = asyncio.create_task(client.post(path, json={**ask, "stream": True}))
        while not engine.dead:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await client.get("/health")).status_code == 503

        await models.poll(place)
        error, success = ENDS[path]
        said = (await answer).content
        assert error in said
        assert success not in said
        refused = await client.post(path, json=ask)
        assert (refused.status_code in (503, 529), refused.headers["retry-after"]) == (True, "1")

        engine.die_at = None
        clock.now += 1
        await models.poll(place)
        assert (await client.get("/health")).status_code == 200
        assert (await client.post(path, json=ask)).status_code == 200
    await models.stop()
