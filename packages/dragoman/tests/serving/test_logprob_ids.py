"""`logprob_token_ids` of vLLM: the probabilities of fixed labels at each position,
however likely they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

LABELS = [300, 5, 1999]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Say hello"}], "logprobs": True},
    "completions": {"prompt": "Say hello", "logprobs": 1},
}


@asynccontextmanager
async def serving(model: str = "tiny") -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(model=model, served_model_name=("m",)), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


async def post(client: httpx2.AsyncClient, path: str, **fields: Any) -> httpx2.Response:
    body = {
        "model": "m",
        "max_tokens": 2,
        "temperature": 0,
        "return_tokens_as_token_ids": True,
        **BODIES[path],
    }
    return await client.post(f"/v1/{path}", json={**body, **fields})


def alternatives(logprobs: Any) -> list[dict[str, float]]:
    """Return the alternatives of each token by name."""
    if "content" in logprobs:
        return [
            {top["token"]: top["logprob"] for top in token["top_logprobs"]}
            for token in logprobs["content"]
        ]
    return logprobs["top_logprobs"]


@pytest.mark.parametrize("path", BODIES)
async def test_logprob_token_ids_returned_for_every_token(path: str):
    async with serving() as client:
        (choice,) = (await post(client, path, logprob_token_ids=LABELS)).json()["choices"]
        stream = await post(client, path, logprob_token_ids=LABELS, stream=True)
        everything = await post(client, path, logprob_token_ids=list(range(1024)))
        rest = await post(client, path, logprob_token_ids=list(range(1024, 2048)))
    listed = alternatives(choice["logprobs"])
    assert len(listed) == 2
    for position in listed:
        assert {f"token_id:{id}" for id in LABELS} <= position.keys()
        assert len(position) in (3, 4)
    chunks = [
        json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")
    ]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"]]
    assert [position for part in parts if part for position in alternatives(part)] == listed
    # The logprobs are those of the whole vocabulary: both halves together have all of
    # the probability.
    halves = [
        alternatives(answer.json()["choices"][0]["logprobs"])[0] for answer in (everything, rest)
    ]
    assert math.isclose(sum(map(math.exp, {**halves[0], **halves[1]}.values())), 1, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"logprobs": False}, "logprob_token_ids"),
        ("completions", {"logprobs": None}, "logprob_token_ids"),
        ("completions", {"echo": True}, "logprob_token_ids"),
        ("chat/completions", {"logprob_token_ids": [2048]}, "logprob_token_ids"),
        ("chat/completions", {"logprob_token_ids": [-1]}, "logprob_token_ids[0]"),
        ("chat/completions", {"logprob_token_ids": [5] * 1025}, "logprob_token_ids"),
    ],
)
async def test_logprob_token_ids_invalid_request_rejected_by_name(
    path: str, fields: dict[str, Any], param: str
):
    async with serving() as client:
        answer = await post(client, path, **{"logprob_token_ids": LABELS, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_logprob_token_ids_empty_ignored_unsupported_rejected():
    async with serving() as client:
        plain, empty = (
            await post(client, "completions"),
            await post(client, "completions", logprob_token_ids=[]),
        )
        assert plain.json()["choices"] == empty.json()["choices"]
    async with serving("scripted") as client:
        rejected = await post(client, "chat/completions", logprob_token_ids=LABELS)
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "logprob_token_ids")


@pytest.mark.parametrize("path", BODIES)
async def test_return_tokens_as_token_ids_covers_all_tokens(path: str):
    """Control tokens are not in the text, but AReaL trains on the ids from the
    logprobs.
    """
    fields = {
        "max_tokens": 12,
        "temperature": 1,
        "seed": 3,
        "ignore_eos": True,
        "logit_bias": {"0": 15, "2": 15},
    }
    async with serving() as client:
        answer = (await post(client, path, **fields)).json()
        with_ids = (await post(client, path, **fields, return_token_ids=True)).json()
        stream = await post(client, path, **fields, stream=True)
    chunks = [
        json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")
    ]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"]]
    expected = [f"token_id:{id}" for id in with_ids["choices"][0]["token_ids"]]
    assert list_names(answer["choices"][0]["logprobs"]) == expected
    assert [name for part in parts if part for name in list_names(part)] == expected
    assert len(expected) == answer["usage"]["completion_tokens"] == 12
    assert "token_id:2" in expected


def list_names(logprobs: Any) -> list[str]:
    return (
        logprobs["tokens"]
        if "tokens" in logprobs
        else [token["token"] for token in logprobs["content"]]
    )
