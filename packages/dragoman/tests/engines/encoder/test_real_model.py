"""A real embedding model: the vectors of transformers, pooled as sentence-transformers
does.
"""

from __future__ import annotations

import base64
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.engines.real_models import find_minilm

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

torch: Any = pytest.importorskip("torch", reason="needs torch (CPU) to compare with")
transformers: Any = pytest.importorskip("transformers", reason="needs transformers to compare with")

pytestmark = pytest.mark.torch

TEXTS = (
    "A cat sits on the mat.",
    "The kitten is asleep.",
    "Tokyo is the capital of Japan.",
    "  odd   spaces\t\n",
    "カタカナ and 😀",
    "word " * 400,
)


async def test_minilm_vectors_match_transformers() -> None:
    directory = find_minilm()
    models = build_models(Settings(model=f"encoder:{directory}"), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {
            "model": next(iter(models)).name,
            "input": TEXTS,
            "encoding_format": "base64",
            "truncate_prompt_tokens": -1,
        }
        response = await client.post("/v1/embeddings", json=body)
        assert response.status_code == 200, response.text
        vectors = [
            np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
            for item in response.json()["data"]
        ]
    await models.stop()
    network = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    for text, vector in zip(TEXTS, vectors, strict=True):
        encoded = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            states = network(**encoded).last_hidden_state[0]
        expected = states.mean(dim=0).numpy()
        expected = expected / np.linalg.norm(expected)
        assert float(vector @ expected) > 0.999999
