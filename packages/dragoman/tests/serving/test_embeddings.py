"""/v1/embeddings through the official SDK, on the embedded model and on an encoder's
directory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import pytest_asyncio

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

from ..engines.encoder.directories import CLS, SCORER, SEP, WORDS, write_encoder
from .harness import body, build_server, scope


@asynccontextmanager
async def serving(model: str, **options: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(model=model), SystemClock())
    app = build_asgi_app(models, options=ServingOptions(**options))
    await models.start()
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost/v1"
    ) as client:
        yield client
    await models.stop()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("all-MiniLM"))


@pytest_asyncio.fixture
async def http(directory: Path) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(str(directory)) as client:
        yield client


def sdk(http: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="none", base_url="http://localhost/v1", http_client=http, max_retries=0
    )


async def test_embeddings_base64_equals_float_encoding(
    http: httpx2.AsyncClient,
):
    """Trap 12: base64 that is ignored gives vectors of a quarter of their dimensions."""
    texts = ["the cat sat on the mat", "Tokyo", "a dog ran"]
    name = (await sdk(http).models.list()).data[0].id
    default = await sdk(http).embeddings.create(model=name, input=texts)
    floats = await sdk(http).embeddings.create(model=name, input=texts, encoding_format="float")
    assert [each.embedding for each in default.data] == [each.embedding for each in floats.data]
    assert [len(each.embedding) for each in default.data] == [32] * 3
    assert [each.index for each in default.data] == [0, 1, 2]
    assert default.usage.prompt_tokens == default.usage.total_tokens == 8 + 3 + 5


async def test_cohere_embed_returns_same_vectors(http: httpx2.AsyncClient):
    texts = ["the cat sat on the mat", "Tokyo"]
    floats = vectors(await post(http, input=texts))
    for path in ("/v2/embed", "/cohere/v2/embed"):
        answer = await http.post(
            f"http://localhost{path}", json={"texts": texts, "input_type": "search_document"}
        )
        response = answer.json()
        assert response["embeddings"] == {"float": floats}
        assert response["meta"]["billed_units"] == {"input_tokens": 8 + 3}


async def post(http: httpx2.AsyncClient, **fields: object) -> httpx2.Response:
    return await http.post("/embeddings", json={"input": "the cat", **fields})


def vectors(answer: httpx2.Response) -> list[list[float]]:
    assert answer.status_code == 200, answer.text
    return [each["embedding"] for each in answer.json()["data"]]


async def test_embeddings_text_gets_special_tokens_but_ids_do_not(
    http: httpx2.AsyncClient,
):
    the = WORDS.index("the")
    cat = WORDS.index("cat")
    framed = vectors(await post(http, input=[CLS, the, cat, SEP]))
    bare = vectors(await post(http, input=[the, cat]))
    assert vectors(await post(http, input="The CAT")) == framed
    assert vectors(await post(http, add_special_tokens=False)) == bare != framed


async def test_embeddings_control_token_in_text_stays_text(http: httpx2.AsyncClient):
    answer = await post(http, input="[SEP]")
    assert answer.json()["usage"]["prompt_tokens"] == 5, "[CLS], three unknown pieces, [SEP]"


async def test_embeddings_oversized_input_rejected_unless_truncated(http: httpx2.AsyncClient):
    words = "cat " * 30
    long = await post(http, input=["cat", words])
    assert long.status_code == 400
    error = long.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert "24" in error["message"]
    assert "32" in error["message"]
    fits = await post(http, input=words, truncate_prompt_tokens=-1)
    assert fits.json()["usage"]["prompt_tokens"] == 24
    assert vectors(fits) == vectors(await post(http, input="cat " * 22))
    begin = vectors(await post(http, input="the cat dog", truncate_prompt_tokens=4))
    end = vectors(
        await post(http, input="the cat dog", truncate_prompt_tokens=4, truncation_side="left")
    )
    assert begin == vectors(await post(http, input="the cat"))
    assert end == vectors(await post(http, input="cat dog"))
    assert (await post(http, truncate_prompt_tokens=2)).status_code == 400


async def test_embeddings_unsupported_dimensions_rejected(http: httpx2.AsyncClient):
    assert (await post(http, dimensions=32)).status_code == 200
    for dimensions in (8, 33):
        rejected = await post(http, dimensions=dimensions)
        assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "dimensions")


async def test_embeddings_unknown_token_id_rejected(http: httpx2.AsyncClient):
    rejected = await post(http, input=[1, 10_000])
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "input")


async def test_encoder_model_rejects_generation(http: httpx2.AsyncClient):
    for path, payload in {
        "/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
        "/completions": {"prompt": "Hi"},
        "/responses": {"input": "Hi"},
        "/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
    }.items():
        rejected = await http.post(path, json={**payload, "stream": True})
        assert rejected.status_code == 400
        assert "/v1/embeddings" in rejected.json()["error"]["message"]
    counted = await http.post(
        "/messages/count_tokens", json={"messages": [{"role": "user", "content": "Hi"}]}
    )
    assert counted.status_code == 400


async def test_embeddings_unknown_field_warned_or_rejected(
    http: httpx2.AsyncClient, directory: Path
):
    answer = await post(http, colour="blue")
    assert answer.headers["x-dragoman-warnings"] == "colour is ignored: unknown field"
    async with serving(str(directory), strict=True) as strict:
        assert (await post(strict, colour="blue")).status_code == 400


async def test_embeddings_cross_encoder_rejected(tmp_path: Path):
    async with serving(str(write_encoder(tmp_path, SCORER))) as http:
        rejected = await post(http)
        assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "model")


async def test_embeddings_unsupported_engine_rejected():
    rejected = await build_server().post("/v1/embeddings", {"model": "m", "input": "x"})
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "model")


async def test_embeddings_tiny_model_supports_dimensions():
    async with serving("tiny") as http:
        texts = ["The capital of Japan is Tokyo.", "Tokyo is the capital of Japan.", "Count to 12."]
        full = np.array(vectors(await post(http, input=texts)))
        short = np.array(vectors(await post(http, input=texts, dimensions=16)))
        raw = np.array(vectors(await post(http, input=texts, normalize=False)))
    assert np.allclose(np.linalg.norm(full, axis=1), 1, atol=1e-6)
    assert np.allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    assert short.shape == (3, 16)
    assert np.allclose(short[0] / short[0, 0], raw[0, :16] / raw[0, 0], rtol=1e-4)
    assert full[0] @ full[1] > full[0] @ full[2]


async def test_embeddings_concurrent_calls_get_own_vectors(http: httpx2.AsyncClient):
    texts = [f"{'cat ' * (n % 5)}{WORDS[5 + n % 14]}" for n in range(40)]
    alone = [vectors(await post(http, input=text)) for text in texts]
    together = await asyncio.gather(*(post(http, input=text) for text in texts))
    assert [vectors(each) for each in together] == alone


async def test_embeddings_disconnected_client_gets_no_response(directory: Path):
    models = build_models(Settings(model=str(directory)), SystemClock())
    app = build_asgi_app(models)
    await models.start()
    fields = json.dumps({"input": ["cat"] * 2000}).encode()
    messages = iter([{"type": "http.request", "body": fields}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope("/v1/embeddings"), receive, send)
    await models.stop()
    assert body(*sent) == []
