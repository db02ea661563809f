"""`suffix` of Completions: the model writes the text between a prompt and a suffix."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.engines.upstream.relays import VLLM, build_engine, direct
from tests.engines.upstream.stub_server import far_server
from tests.serving.harness import load_tiny_tokenizer
from tests.serving.infill_model import build_infill_models

from dragoman.engines.upstream import KINDS
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

PATH = "/v1/completions"
BODY: dict[str, Any] = {
    "model": "coder",
    "prompt": "def f(",
    "suffix": "return 1",
    "max_tokens": 2,
    "return_token_ids": True,
}


@pytest.fixture
def coder(tmp_path: Path) -> tuple[Models, int]:
    return build_infill_models(tmp_path)


@pytest_asyncio.fixture
async def client(coder: tuple[Models, int]) -> AsyncGenerator[httpx2.AsyncClient]:
    async with direct(coder[0], VLLM) as client:
        yield client


def build_ids(first: int, prefix: str, suffix: str) -> list[int]:
    """Build the prompt of a model whose tokens for it begin with the id `first`."""
    encode = load_tiny_tokenizer().encode
    return [
        first,
        *encode(prefix, special=False),
        first + 1,
        *encode(suffix, special=False),
        first + 2,
    ]


def read_chunks(answer: httpx2.Response) -> list[Any]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]


async def test_suffix_builds_infill_prompt_of_each_prompt(
    client: httpx2.AsyncClient, coder: tuple[Models, int]
):
    prompts = ["def f(", "x = <|fim_middle|>"]
    answer = await client.post(PATH, json=BODY | {"prompt": prompts, "logprobs": 1})
    choices = answer.json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [
        build_ids(coder[1], prompt, "return 1") for prompt in prompts
    ]
    assert all(len(choice["logprobs"]["tokens"]) == 2 for choice in choices)


async def test_suffix_stream_equals_whole_answer(client: httpx2.AsyncClient):
    body = BODY | {"seed": 1, "max_tokens": 9}
    whole = (await client.post(PATH, json=body)).json()["choices"][0]
    chunks = read_chunks(await client.post(PATH, json=body | {"stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"] != ""
    assert chunks[0]["choices"][0]["prompt_token_ids"] == whole["prompt_token_ids"]


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
async def test_infill_token_ends_answer_as_end_of_sequence(
    client: httpx2.AsyncClient, coder: tuple[Models, int], offset: int
):
    body = BODY | {"max_tokens": 20, "logit_bias": {str(coder[1] + offset): 100}}
    choice = (await client.post(PATH, json=body)).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert len(choice["token_ids"]) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"echo": True}, "cannot be combined with 'echo'"),
        ({"prompt": [1, 2]}, "it needs prompts that are texts"),
        ({"prompt": [[1], [2]]}, "it needs prompts that are texts"),
        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    ],
)
async def test_suffix_with_conflicting_field_is_rejected(
    client: httpx2.AsyncClient, fields: dict[str, Any], words: str
):
    answer = await client.post(PATH, json=BODY | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "suffix")
    assert words in error["message"]


async def test_empty_suffix_is_no_suffix(client: httpx2.AsyncClient):
    answer = await client.post(PATH, json=BODY | {"suffix": "", "echo": True})
    assert answer.json()["choices"][0]["text"].startswith("def f(")


async def test_suffix_of_model_without_infill_tokens_is_rejected():
    models = build_models(Settings(), SystemClock())
    async with direct(models) as client:
        answer = await client.post(PATH, json=BODY | {"model": "tiny"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "suffix")
    assert "no tokens for fill-in-the-middle" in error["message"]


ANSWER = {
    "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
FORWARDING = ("compatible", "openai", "dragoman")


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "tei"])
@pytest.mark.parametrize("path", [PATH, "/api/generate"])
async def test_suffix_is_forwarded_or_rejected_by_upstream_kind(kind: str, path: str):
    bodies: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return httpx2.Response(200, json=ANSWER)

    async with far_server(answer) as address:
        engine = build_engine(address, kind=kind)
        models = Models([ServedModel("m", EventBackend(engine), 4096, 1_700_000_000)])
        async with direct(models) as client:
            body = {"model": "m", "prompt": "def f(", "suffix": "return 1", "stream": False}
            found = await client.post(path, json=body)
    if kind in FORWARDING:
        assert found.status_code == 200
        assert [(body["prompt"], body["suffix"]) for body in bodies] == [("def f(", "return 1")]
    else:
        assert (found.status_code, bodies) == (400, [])
        assert "suffix" in found.text
