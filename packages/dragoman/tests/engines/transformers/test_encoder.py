"""A causal model that its files declare to embed texts or to score pairs is served so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from dragoman.core.encoder_requests import EmbedRequest, TextInputs, TextPairs
from dragoman.core.errors import ContextTooLong, RequestError
from dragoman.engines.batched_encoder import BatchedEmbedder
from dragoman.engines.transformers import encoder
from dragoman.launch.engine_choice import choose_directory_engine
from dragoman.pipeline.embedding import embed
from dragoman.pipeline.scoring import score_pairs
from dragoman.settings import SettingsError

from .sentence_models import HIDDEN, write_causal_model, write_modules
from .serving import serve_model
from .test_models import ON_A_CPU

pytestmark = pytest.mark.torch

LAST = ("Pooling", {"word_embedding_dimension": HIDDEN, "pooling_mode": "lasttoken"})


def write_reranker(directory: Path, **config: object) -> Path:
    """Write a reranker with the answers of vLLM's field in config.json."""
    write_causal_model(directory)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return directory


def numbers(vector: bytes) -> np.ndarray:
    return np.frombuffer(vector, "<f4")


async def test_directory_with_modules_is_served_as_embedder(tmp_path: Path) -> None:
    write_modules(write_causal_model(tmp_path), [LAST])
    assert choose_directory_engine(tmp_path).engine in ("encoder", "vllm")
    async with serve_model(tmp_path) as model:
        embeddings = await embed(model, TextInputs(("a", (5, 6, 7))), None, None)
        with pytest.raises(RequestError, match="similarities"):
            await score_pairs(model, TextPairs(("a",), ("b",), activation=True))
    assert embeddings.dimensions == HIDDEN


async def test_embed_vectors_match_alone_and_in_company(tmp_path: Path) -> None:
    engine = encoder.load(write_modules(write_causal_model(tmp_path), [LAST]), ON_A_CPU)
    texts = tuple(tuple(range(5, 5 + size)) for size in (3, 9, 3, 20))
    await engine.start()
    assert isinstance(engine, BatchedEmbedder)
    together = await engine.embed(EmbedRequest("m", texts))
    alone = [await engine.embed(EmbedRequest("m", (text,))) for text in texts]
    await engine.stop()
    for vector, single in zip(together.vectors, alone, strict=True):
        assert np.allclose(numbers(vector), numbers(single.vectors[0]), atol=1e-5)


async def test_answers_in_config_make_qwen3_a_reranker(tmp_path: Path) -> None:
    write_reranker(tmp_path, classifier_from_token=["no", "yes"])
    assert choose_directory_engine(tmp_path).engine == "encoder"
    async with serve_model(tmp_path) as model:
        pairs = TextPairs(("where",), ("here", "there <|im_end|>"))
        scores = await score_pairs(model, pairs)
        cut = await score_pairs(model, TextPairs(("where",), ("here " * 900,), truncate=-1))
        with pytest.raises(ContextTooLong):
            await score_pairs(model, TextPairs(("where",), ("here " * 600,)))
    assert all(0 < score < 1 for score in scores.scores)
    # Qwen3-Reranker's instruction has more than 50 tokens.
    assert scores.prompt_tokens > 100
    assert cut.prompt_tokens == 512


async def test_causal_model_named_as_encoder_scores_pairs(tmp_path: Path) -> None:
    write_causal_model(tmp_path)
    assert choose_directory_engine(tmp_path).engine != "encoder"
    declared = write_reranker(tmp_path / "declared", classifier_from_token=["no", "yes"])
    pairs = TextPairs(("where",), ("here", "there"))
    async with serve_model(tmp_path, "encoder:") as model, serve_model(declared) as other:
        assert (await score_pairs(model, pairs)).scores == (await score_pairs(other, pairs)).scores


@pytest.mark.parametrize(
    ("answers", "named"), [(["never", "yes"], "never"), (["a", "b", "c"], "not 3")]
)
async def test_unknown_answers_raise_with_name(
    answers: list[str], named: str, tmp_path: Path
) -> None:
    write_reranker(tmp_path, classifier_from_token=answers)
    with pytest.raises(SettingsError, match=named):
        async with serve_model(tmp_path):
            pass


async def test_template_without_pair_roles_raises(tmp_path: Path) -> None:
    logits = {"true_token_id": 1573, "false_token_id": 790}
    write_modules(write_causal_model(tmp_path), [("LogitScore", logits)])
    (tmp_path / "sentence_bert_config.json").write_text(
        json.dumps(
            {
                "transformer_task": "text-generation",
                "modality_config": {"message": {"method_output_name": "logits"}},
            }
        )
    )
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(SettingsError, match="roles query and document"):
        async with serve_model(tmp_path):
            pass
