"""Rerank and score: cosines of vectors, or the output of a cross-encoder for both texts
together.
"""

from __future__ import annotations

from typing import Any

import httpx2
import numpy as np
import pytest

from ..engines.encoder.directories import SCORER, write_encoder
from .test_embeddings import serving

DOCUMENTS = ["the cat sat on the mat", "a dog ran", "Tokyo is the capital of Japan"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_encoder(tmp_path_factory.mktemp("encoder")))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_encoder(tmp_path_factory.mktemp("scorer"), SCORER))


async def scores(http: httpx2.AsyncClient, **fields: object) -> list[float]:
    answer = await http.post("http://localhost/v1/score", json=fields)
    assert answer.status_code == 200, answer.text
    return [each["score"] for each in answer.json()["data"]]


async def test_score_encoder_equals_cosine_of_embeddings(encoder: str):
    async with serving(encoder) as http:
        embedded = await http.post("/embeddings", json={"input": ["the cat", *DOCUMENTS]})
        vectors = np.array([each["embedding"] for each in embedded.json()["data"]])
        scored = await scores(http, text_1="the cat", text_2=DOCUMENTS)
        paired = await scores(http, queries=DOCUMENTS, items=DOCUMENTS)
    assert np.allclose(scored, vectors[1:] @ vectors[0], atol=1e-6)
    assert np.allclose(paired, 1, atol=1e-6)


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank"])
async def test_rerank_orders_by_scores(encoder: str, scorer: str, path: str):
    for model in (encoder, scorer):
        async with serving(model) as http:
            http.base_url = httpx2.URL("http://localhost")
            scored = await scores(http, text_1="the cat", text_2=DOCUMENTS)
            body = {"query": "the cat", "documents": DOCUMENTS, "top_n": 2}
            ranked = (await http.post(path, json=body)).json()
            texts = {"query": "the cat", "texts": DOCUMENTS, "return_text": True}
            tei = (await http.post(path, json=texts)).json()
        order = sorted(range(3), key=lambda index: -scored[index])[:2]
        assert [each["index"] for each in ranked["results"]] == order
        assert [each["relevance_score"] for each in ranked["results"]] == [
            scored[index] for index in order
        ]
        assert ranked["results"][0]["document"]["text"] == DOCUMENTS[order[0]]
        assert ranked["usage"]["prompt_tokens"] > 0
        assert tei == [
            {"index": index, "score": scored[index], "text": DOCUMENTS[index]}
            for index in sorted(range(3), key=lambda index: -scored[index])
        ]


async def test_score_cross_encoder_depends_on_text_order(scorer: str):
    async with serving(scorer) as http:
        there = await scores(http, text_1="the cat", text_2=DOCUMENTS)
        back = await scores(http, text_1=DOCUMENTS, text_2=["the cat"] * 3)
        raw = await scores(http, text_1="the cat", text_2=DOCUMENTS, use_activation=False)
        alone = [
            (await scores(http, text_1="the cat", text_2=document))[0] for document in DOCUMENTS
        ]
    assert there == alone
    assert there != back
    assert np.allclose(there, 1 / (1 + np.exp(-np.array(raw))), atol=1e-6)


async def post_error(http: httpx2.AsyncClient, **fields: object) -> dict[str, Any]:
    answer = await http.post("http://localhost/v1/score", json=fields)
    assert answer.status_code == 400
    return answer.json()["error"]


async def test_score_oversized_document_rejected_unless_truncated(encoder: str, scorer: str):
    words = "cat " * 70
    for model in (encoder, scorer):
        async with serving(model) as http:
            error = await post_error(http, text_1="the cat", text_2=["a", words])
            assert (error["code"], error["param"]) == ("context_length_exceeded", "documents[1]")
            cut = await scores(
                http, text_1="the cat", text_2=["a", words], truncate_prompt_tokens=-1
            )
            short = await scores(http, text_1="the cat", text_2=["a", words], max_tokens_per_doc=4)
            assert short == await scores(http, text_1="the cat", text_2=["a", "cat " * 4])
            assert cut != short
            error = await post_error(http, text_1="the cat", text_2=words, truncate_prompt_tokens=2)
            assert error["param"] == "truncate_prompt_tokens"


async def test_score_encoder_with_use_activation_rejected(encoder: str):
    async with serving(encoder) as http:
        assert (await post_error(http, text_1="a", text_2="b", use_activation=True))[
            "param"
        ] == "use_activation"


@pytest.mark.parametrize("path", ["/moderations", "/classify", "/pooling"])
async def test_score_unsupported_model_returns_404(path: str, encoder: str):
    async with serving(encoder) as http:
        if path != "/moderations":
            http.base_url = httpx2.URL("http://localhost")
        rejected = await http.post(path, json={"input": "x"})
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (404, "unsupported_endpoint")


async def test_score_tiny_model():
    async with serving("tiny") as http:
        same, other = await scores(
            http, text_1="What is Tokyo?", text_2=["What is Tokyo?", "Count to 12."]
        )
    assert same == pytest.approx(1)
    assert other < same
