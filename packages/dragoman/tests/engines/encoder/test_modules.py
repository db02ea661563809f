"""What sentence-transformers' files declare is honoured, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from dragoman.core.encoder_requests import EncodingTask, Pooling, Similarity
from dragoman.core.errors import EngineError
from dragoman.engines.batched_encoder import BatchedEmbedder, BatchedScorer
from dragoman.engines.encoder_engine import load
from dragoman.engines.sentence_modules import find_declared_task, read_pooling, read_reranker

from .directories import SCORER, write_encoder

TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
LOGITS = {"type": "sentence_transformers.cross_encoder.modules.LogitScore", "path": "1_LogitScore"}


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("modules", "model", "task"),
    [
        (None, None, None),
        (b"[]", None, None),
        (b"not JSON", None, None),
        (json.dumps([TRANSFORMER, POOLING]).encode(), None, EncodingTask.EMBEDDINGS),
        (json.dumps([TRANSFORMER, LOGITS]).encode(), None, EncodingTask.SCORING),
        (json.dumps([TRANSFORMER]).encode(), None, EncodingTask.SCORING),
        (None, b'{"model_type": "CrossEncoder"}', EncodingTask.SCORING),
        (None, b'{"model_type": "SentenceTransformer"}', None),
    ],
)
def test_find_declared_task_reads_modules_and_model_type(
    modules: bytes | None, model: bytes | None, task: EncodingTask | None
) -> None:
    assert find_declared_task(modules, model) == task


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("modules.json", [TRANSFORMER, {"type": "a.CNN", "path": "1"}], "CNN"),
        (
            "modules.json",
            [TRANSFORMER, POOLING, {"type": "a.WeightedLayerPooling"}],
            "WeightedLayerPooling",
        ),
        ("modules.json", [{"type": "a.StaticEmbedding", "path": ""}, POOLING], "StaticEmbedding"),
        ("modules.json", [TRANSFORMER, {"type": "a.Pooling", "path": "../x"}], "leaves"),
        ("modules.json", [{"type": "a.Transformer", "path": "0_T"}, POOLING], "0_T"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "median"),
        ("1_Pooling/config.json", {"pooling_mode_new_tokens": True}, "pooling_mode_new_tokens"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case"),
        ("sentence_bert_config.json", {"model_args": {"x": 1}}, "model_args"),
        ("sentence_bert_config.json", {"new_field": 1}, "new_field"),
        ("sentence_bert_config.json", {"query_length": 32}, "query_length"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "fill-mask"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"message": {"method_output_name": "last_hidden_state"}}},
            "message",
        ),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {"method_output_name": "pooler_output"}}},
            "modality_config.text",
        ),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "SparseEncoder"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "maxsim"}, "maxsim"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim"),
        ("config_sentence_transformers.json", {"default_prompt_name": "web"}, "web"),
    ],
)
def test_load_undeclarable_embedder_raises_with_name(
    file: str, content: object, named: str, tmp_path: Path
) -> None:
    write_encoder(tmp_path)
    write_json(tmp_path / file, content)
    with pytest.raises(EngineError, match=named):
        load(tmp_path)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"in_features": 32}, "out_features"),
        ({"in_features": 8, "out_features": 4}, "8 numbers"),
        (
            {"in_features": 32, "out_features": 4, "activation_function": "my.Function"},
            "my.Function",
        ),
        (
            {"in_features": 32, "out_features": 4, "module_input_name": "token_embeddings"},
            "token_embeddings",
        ),
        ({"in_features": 32, "out_features": 4}, "no safetensors"),
    ],
)
def test_load_unsupported_dense_raises_with_reason(
    config: Mapping[str, object], named: str, tmp_path: Path
) -> None:
    write_encoder(tmp_path)
    dense = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    write_json(tmp_path / "modules.json", [TRANSFORMER, POOLING, dense])
    write_json(tmp_path / "2_Dense" / "config.json", config)
    with pytest.raises(EngineError, match=named):
        load(tmp_path)


def test_load_prompt_excluded_from_pooling_raises(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    write_json(
        tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "mean", "include_prompt": False}
    )
    assert isinstance(load(tmp_path), BatchedEmbedder)
    write_json(tmp_path / "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    with pytest.raises(EngineError, match="include_prompt"):
        load(tmp_path)


def test_read_pooling_reads_all_declared_fields(tmp_path: Path) -> None:
    write_encoder(tmp_path, pooling=None)
    write_json(tmp_path / "modules.json", [TRANSFORMER, POOLING])
    write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": ["max", "weightedmean"]})
    write_json(tmp_path / "sentence_roberta_config.json", {"max_seq_length": 12})
    write_json(
        tmp_path / "config_sentence_transformers.json",
        {
            "prompts": {"query": "q: ", "document": None, "web": "w: "},
            "default_prompt_name": "web",
            "similarity_fn_name": "dot",
            "truncate_dim": 16,
        },
    )
    config = read_pooling(tmp_path)
    assert config.modes == (Pooling.MAX, Pooling.WEIGHTED_MEAN)
    assert (config.prompt, config.query_prompt, config.document_prompt) == ("w: ", "q: ", "")
    assert (config.similarity, config.truncate_dim) == (Similarity.DOT, 16)
    assert (config.max_tokens, config.normalized) == (12, False)


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("config_sentence_transformers.json", {"activation_fn": "my.Function"}, "my.Function"),
        ("config_sentence_transformers.json", {"model_type": "MultiVectorEncoder"}, "MultiVector"),
        ("modules.json", [TRANSFORMER, LOGITS, {"type": "a.Dense"}], "Dense"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"a": 1}}}, "text"),
    ],
)
def test_read_unsupported_reranker_raises_with_name(
    file: str, content: object, named: str, tmp_path: Path
) -> None:
    write_encoder(tmp_path, SCORER)
    write_json(tmp_path / file, content)
    with pytest.raises(EngineError, match=named):
        read_reranker(tmp_path)


def test_load_scorer_reads_limit_and_prompt(tmp_path: Path) -> None:
    write_encoder(tmp_path, SCORER)
    write_json(tmp_path / "modules.json", [TRANSFORMER])
    write_json(
        tmp_path / "sentence_bert_config.json",
        {"max_seq_length": 30, "transformer_task": "sequence-classification"},
    )
    write_json(
        tmp_path / "config_sentence_transformers.json",
        {"prompts": {"web": "w: "}, "default_prompt_name": "web"},
    )
    engine = load(tmp_path)
    assert isinstance(engine, BatchedScorer)
    assert (engine.max_tokens, engine.query_prompt) == (30, "w: ")
