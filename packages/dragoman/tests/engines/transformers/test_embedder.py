"""A causal model whose modules.json declares pooling embeds texts as the library's base
model does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from dragoman.core.encoder_requests import EmbedRequest
from dragoman.core.errors import EngineError
from dragoman.engines.tiny import find_bundled_model
from dragoman.engines.transformers import embedder
from dragoman.engines.transformers.backend import library, torch
from dragoman.launch import build_models
from dragoman.launch.engine_choice import choose_directory_engine
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.store import MemoryStore

from .test_models import ON_A_CPU, network

pytestmark = pytest.mark.torch

MODULES = [
    {"idx": 0, "type": "sentence_transformers.models.Transformer", "path": ""},
    {"idx": 1, "type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"idx": 2, "type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
]
PROMPT = "Instruct: find answers\nQuery: "
TEXTS = tuple(
    tuple(np.random.default_rng(n).integers(3, 96, n).tolist()) for n in (1, 7, 7, 30, 64)
)


def save_embedder(directory: Path, pooling: dict[str, object], kind: str = "qwen3") -> Path:
    network(kind, vocab_size=8192).save_pretrained(directory)
    (directory / "modules.json").write_text(json.dumps(MODULES))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


def compute_expected(directory: Path, mode: str, *texts: tuple[int, ...]) -> list[Any]:
    model = library.AutoModel.from_pretrained(directory, dtype=torch.float32)
    vectors: list[Any] = []
    for ids in texts:
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        match mode:
            case "last":
                vector = states[-1]
            case "cls":
                vector = states[0]
            case _:
                vector = states.mean(dim=0)
        vectors.append((vector / vector.norm()).numpy())
    return vectors


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gemma3_text"])
@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
    ],
)
async def test_embed_vectors_match_base_model(
    kind: str, pooling: dict[str, object], mode: str, tmp_path: Path
) -> None:
    engine = embedder.load(save_embedder(tmp_path, pooling, kind), ON_A_CPU)
    await engine.start()
    result = await engine.embed(EmbedRequest("m", TEXTS))
    await engine.stop()
    expected = compute_expected(tmp_path, mode, *TEXTS)
    for vector, wanted in zip(result.vectors, expected, strict=True):
        assert np.abs(np.frombuffer(vector, "<f4") - wanted).max() < 1e-5
    assert engine.embedding_info.max_tokens == 512


def test_load_unknown_module_raises(tmp_path: Path) -> None:
    save_embedder(tmp_path, {"pooling_mode": "mean"})
    dense = {"idx": 3, "type": "sentence_transformers.models.Dense", "path": "3_Dense"}
    (tmp_path / "modules.json").write_text(json.dumps([*MODULES, dense]))
    with pytest.raises(EngineError, match="module Dense is not supported"):
        embedder.load(tmp_path, ON_A_CPU)


@asynccontextmanager
async def serving(directory: Path) -> AsyncGenerator[httpx2.AsyncClient]:
    settings = Settings().replace(
        model=str(directory), served_model_name=("m",), device="cpu", dtype="float32"
    )
    models = build_models(settings, SystemClock())
    await models.start()
    try:
        transport = httpx2.ASGITransport(build_asgi_app(models, store=MemoryStore()))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield http
    finally:
        await models.stop()


async def test_directory_with_modules_is_served_as_embedder(tmp_path: Path) -> None:
    save_embedder(tmp_path, {"pooling_mode": "lasttoken"})
    bundled = find_bundled_model()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((bundled / name).read_bytes())
    prompts = {"prompts": {"query": PROMPT, "document": ""}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert choose_directory_engine(tmp_path).engine in ("encoder", "vllm")
    async with serving(tmp_path) as http:
        ids = (5, 6, 7)
        answers = [
            (await http.post("/v1/embeddings", json={"model": "m", "input": text})).json()
            for text in ([*ids], "!", PROMPT + "!")
        ]
        rejected = await http.post("/v1/chat/completions", json={"model": "m", "messages": []})
    (expected,) = compute_expected(tmp_path, "last", ids)
    assert np.abs(np.array(answers[0]["data"][0]["embedding"]) - expected).max() < 1e-5
    counts = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert counts[1] > 10
    assert counts[2] > counts[1] + 10
    assert rejected.status_code == 400


def test_default_prompt_without_text_raises(tmp_path: Path) -> None:
    save_embedder(tmp_path, {"pooling_mode": "lasttoken"})
    (tmp_path / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": PROMPT}, "default_prompt_name": "other"})
    )
    with pytest.raises(EngineError, match="default_prompt_name 'other' is not one of its prompts"):
        embedder.load(tmp_path, ON_A_CPU)
