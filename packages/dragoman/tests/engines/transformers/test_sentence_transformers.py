"""Embeddings and scores of texts equal those of sentence-transformers, for the
directories that it writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")

from dragoman.core.encoder_requests import TextInputs, TextPairs
from dragoman.pipeline.embedding import embed
from dragoman.pipeline.scoring import score_pairs
from dragoman.pipeline.served_model import ServedModel

from .sentence_models import (
    HIDDEN,
    NO,
    YES,
    write_causal_model,
    write_dense,
    write_encoder_model,
    write_modules,
)
from .serving import serve_model, serve_numpy_encoder

theirs: Any = import_module("sentence_transformers")

pytestmark = pytest.mark.torch

Serve = Callable[[Path], AbstractAsyncContextManager[ServedModel]]
TEXTS = (
    "the cat sat on the mat",
    "a dog",
    "Tokyo, the capital of Japan",
    "the cats ran sitting on a mat of the dogs, the cat and the dog sat on the mat of a cat",
)
QUERY = "the capital of Japan"
MEAN = ("Pooling", {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True})
LAST = ("Pooling", {"word_embedding_dimension": HIDDEN, "pooling_mode": "lasttoken"})
NORMALIZE: tuple[str, dict[str, object]] = ("Normalize", {})
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)


def pool(**fields: object) -> tuple[str, dict[str, object]]:
    return "Pooling", {"word_embedding_dimension": HIDDEN, **fields}


def write_plain(kind: str, *modules: Any, **model: object) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        write_modules(write_encoder_model(directory, kind), modules, **model)

    return write


def write_projected(directory: Path, config: dict[str, object], **weights: Any) -> None:
    outer = int(str(config["out_features"]))
    dense = {"in_features": HIDDEN, **config}
    write_modules(write_encoder_model(directory, "bert"), [MEAN, ("Dense", dense), NORMALIZE])
    write_dense(directory / "2_Dense", HIDDEN, outer, **weights)


def write_causal(kind: str, *modules: Any, **model: object) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        write_modules(write_causal_model(directory, kind), modules, **model)

    return write


PROMPTS = {"query": "a dog: ", "document": "the mat: "}
EMBEDDERS: dict[str, Callable[[Path], None]] = {
    "bert mean": write_plain("bert", MEAN, NORMALIZE),
    "bert cls": write_plain("bert", pool(pooling_mode_cls_token=True)),
    "bert max": write_plain("bert", pool(pooling_mode="max"), NORMALIZE),
    "bert sqrt": write_plain("bert", pool(pooling_mode="mean_sqrt_len_tokens")),
    "bert weighted": write_plain("bert", pool(pooling_mode_weightedmean_tokens=True), NORMALIZE),
    "bert weighted 5": write_plain("bert", pool(pooling_mode="weightedmean")),
    "bert two": write_plain(
        "bert", pool(pooling_mode_mean_tokens=True, pooling_mode_cls_token=True), NORMALIZE
    ),
    "bert list": write_plain("bert", pool(pooling_mode=["mean", "max", "lasttoken"])),
    "bert none": write_plain("bert", pool(pooling_mode_cls_token=False)),
    "bert prompt": write_plain(
        "bert", MEAN, NORMALIZE, prompts=PROMPTS, default_prompt_name="query"
    ),
    "bert truncated": write_plain("bert", MEAN, NORMALIZE, truncate_dim=12),
    "bert early unit": write_plain("bert", MEAN, NORMALIZE, ("Dropout", {"dropout": 0.1})),
    "dense tanh": lambda directory: write_projected(
        directory,
        {"out_features": 20, "activation_function": "torch.nn.modules.activation.Tanh"},
    ),
    "dense identity": lambda directory: write_projected(
        directory,
        {
            "out_features": 48,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
        bias=False,
    ),
    "dense residual": lambda directory: write_projected(
        directory,
        {
            "out_features": 40,
            "use_residual": True,
            "activation_function": "torch.nn.modules.activation.GELU",
        },
        residual=True,
    ),
    "roberta": write_plain("roberta", MEAN, NORMALIZE),
    "xlm-roberta": write_plain("xlm-roberta", pool(pooling_mode_cls_token=True), NORMALIZE),
    "mpnet": write_plain("mpnet", MEAN, NORMALIZE),
    "modernbert": write_plain("modernbert", pool(pooling_mode_cls_token=True), NORMALIZE),
    "electra": write_plain("electra", MEAN),
    "qwen3": write_causal("qwen3", LAST, NORMALIZE, prompts=PROMPTS, default_prompt_name="query"),
    "llama": write_causal("llama", MEAN),
}


LIBRARY_ONLY = ("electra", "qwen3", "llama", "logits", "undeclared")
"""What the beginning of a shape's name says that numpy does not run."""


def list_runs(shapes: Mapping[str, object]) -> list[tuple[str, Serve]]:
    on_numpy = [shape for shape in shapes if not shape.startswith(LIBRARY_ONLY)]
    return [
        *((shape, serve_model) for shape in shapes),
        *((shape, serve_numpy_encoder) for shape in on_numpy),
    ]


@pytest.mark.parametrize(("shape", "serve"), list_runs(EMBEDDERS))
async def test_embeddings_match_sentence_transformers(
    shape: str, serve: Serve, tmp_path: Path
) -> None:
    EMBEDDERS[shape](tmp_path)
    model = theirs.SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    expected = model.float().encode(list(TEXTS))
    async with serve(tmp_path) as served:
        found = await embed(served, TextInputs(TEXTS), None, None)
    vectors = np.array([np.frombuffer(vector, "<f4") for vector in found.vectors])
    assert vectors.shape == expected.shape
    assert np.abs(vectors - expected).max() < 1e-5


SIDES = {"prompts": PROMPTS, "default_prompt_name": "document"}


@pytest.mark.parametrize("similarity", [None, "cosine", "dot", "euclidean", "manhattan"])
async def test_similarities_match_sentence_transformers(
    similarity: str | None, tmp_path: Path
) -> None:
    fields = SIDES if similarity is None else {**SIDES, "similarity_fn_name": similarity}
    write_plain("bert", MEAN, **fields)(tmp_path)
    model = theirs.SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    expected = model.similarity(model.encode_query([QUERY]), model.encode_document(list(TEXTS)))
    async with serve_model(tmp_path) as served:
        found = await score_pairs(served, TextPairs((QUERY,), TEXTS))
    # The other functions are sums over numbers larger than 1.
    assert np.allclose(found.scores, expected[0].numpy(), rtol=1e-5, atol=1e-5)


SEGMENTS = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}


def write_classifier(
    kind: str, tokenizer: Mapping[str, object] | None = None, **fields: object
) -> Callable[[Path], None]:
    return lambda directory: void(
        write_encoder_model(
            directory, kind, "ForSequenceClassification", tokenizer=tokenizer, **fields
        )
    )


def void(_: object) -> None: ...


def write_logit_score(
    modality: Mapping[str, object], *, false_id: int | None = NO, **options: object
) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        write_causal_model(directory)
        score = {"true_token_id": YES, "false_token_id": false_id}
        write_modules(directory, [("LogitScore", score)], model_type="CrossEncoder", **options)
        (directory / "sentence_bert_config.json").write_text(
            json.dumps(
                {
                    "transformer_task": "text-generation",
                    "modality_config": {"text": FORWARD, **modality},
                    "module_output_name": "causal_logits",
                    "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
                }
            )
        )
        (directory / "chat_template.jinja").write_text(TEMPLATE)

    return write


def write_undeclared(directory: Path) -> None:
    write_causal_model(directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": "CrossEncoder"})
    )


FORWARD = {"method": "forward", "method_output_name": "logits"}
MESSAGE = {"message": {**FORWARD, "format": "flat"}}
RERANKERS: dict[str, Callable[[Path], None]] = {
    "bert": write_classifier("bert", {"tokenizer_class": "BertTokenizer"}),
    "bert fast": write_classifier("bert", {"tokenizer_class": "BertTokenizerFast"}),
    "bert generic": write_classifier("bert"),
    "bert named inputs": write_classifier("bert", SEGMENTS),
    "bert identity": write_classifier(
        "bert", {"tokenizer_class": "BertTokenizer"}, sentence_transformers=IDENTITY
    ),
    "bert old tanh": write_classifier(
        "bert", sbert_ce_default_activation_function="torch.nn.modules.activation.Tanh"
    ),
    "roberta": write_classifier("roberta"),
    "roberta named inputs": write_classifier("roberta", SEGMENTS),
    "xlm-roberta": write_classifier("xlm-roberta"),
    "mpnet": write_classifier("mpnet"),
    "modernbert cls": write_classifier("modernbert", classifier_pooling="cls"),
    "modernbert mean": write_classifier("modernbert", classifier_pooling="mean"),
    "qwen3 head": lambda directory: void(
        write_causal_model(directory, "qwen3", "ForSequenceClassification")
    ),
    "logits template": write_logit_score(MESSAGE),
    "logits prompt": write_logit_score(
        MESSAGE, prompts={"web": "Find the passage."}, default_prompt_name="web"
    ),
    "logits text": write_logit_score({}, activation_fn="torch.nn.modules.linear.Identity"),
    "logits one token": write_logit_score(MESSAGE, false_id=None),
    "undeclared tokens": write_undeclared,
}


@pytest.mark.parametrize(("shape", "serve"), list_runs(RERANKERS))
async def test_scores_match_sentence_transformers(shape: str, serve: Serve, tmp_path: Path) -> None:
    RERANKERS[shape](tmp_path)
    model = theirs.CrossEncoder(str(tmp_path), device="cpu", local_files_only=True)
    expected = model.float().predict([(QUERY, text) for text in TEXTS])
    async with serve(tmp_path) as served:
        found = await score_pairs(served, TextPairs((QUERY,), TEXTS))
    assert found.scores == pytest.approx(expected.tolist(), abs=1e-5)
