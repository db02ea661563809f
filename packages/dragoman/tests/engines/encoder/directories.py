"""Write encoders with random weights in the formats of transformers and
sentence-transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dragoman.core.encoder_requests import TokenizedPair

from ..tiny.models import write_tensors

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *[
        "the",
        "cat",
        "sat",
        "on",
        "mat",
        "a",
        "dog",
        "ran",
        "##s",
        "##ing",
        "tokyo",
        "japan",
        "capital",
        "of",
    ],
]
PAD, UNK, CLS, SEP = range(4)


class Shape(Struct, frozen=True):
    """Sizes of an encoder.

    task: the head on the encoder: the suffix of its class name in transformers.
    """

    family: str = "bert"
    task: str = "Model"
    layers: int = 2
    hidden: int = 32
    heads: int = 4
    intermediate: int = 48
    positions: int = 64
    act: str = "gelu"

    @property
    def architecture(self) -> str:
        return {"bert": "Bert", "roberta": "Roberta"}[self.family] + self.task

    @property
    def types(self) -> int:
        """Token types: RoBERTa's second one is the library's default, and never used."""
        return 2


PLAIN = Shape()
SCORER = Shape(task="ForSequenceClassification")


def build_pair(ids: tuple[int, ...], second: int) -> TokenizedPair:
    """Build a pair whose second text has the second type. second: where it starts."""
    return TokenizedPair(ids, (0,) * second + (1,) * (len(ids) - second))


def write_encoder(
    directory: Path,
    shape: Shape = PLAIN,
    *,
    pooling: str | None = "pooling_mode_mean_tokens",
    normalize: bool = True,
    more: Mapping[str, object] | None = None,
) -> Path:
    """Write a model directory.

    pooling: None omits sentence-transformers' files.
    more: fields of config.json.
    """
    write_tensors(directory / "model.safetensors", tensors(shape))
    (directory / "config.json").write_text(json.dumps({**config(shape), **(more or {})}))
    (directory / "tokenizer.json").write_text(json.dumps(build_tokenizer()))
    if pooling is not None and shape.task == "Model":
        write_modules(directory, pooling, normalize=normalize)
    return directory


def write_modules(directory: Path, pooling: str, *, normalize: bool) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling"} | (
        {"2_Normalize": "Normalize"} if normalize else {}
    )
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 24, "do_lower_case": False})
    )
    (directory / "1_Pooling").mkdir(exist_ok=True)
    modes = dict.fromkeys(
        ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens"), False
    )
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({**modes, pooling: True}))


def config(shape: Shape) -> dict[str, object]:
    first = 0 if shape.family == "bert" else 2
    fields: dict[str, object] = {
        "architectures": [shape.architecture],
        "model_type": shape.family,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "vocab_size": len(WORDS),
        "max_position_embeddings": shape.positions + first,
        "type_vocab_size": shape.types,
        "hidden_act": shape.act,
        "layer_norm_eps": 1e-12 if shape.family == "bert" else 1e-5,
        "pad_token_id": 0 if shape.family == "bert" else 1,
    }
    if shape.task == "ForSequenceClassification":
        fields |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return fields


def tensors(shape: Shape) -> Mapping[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    hidden = shape.hidden
    prefix = "" if shape.task == "Model" else f"{shape.family}."
    first = 0 if shape.family == "bert" else 2
    arrays: dict[str, NDArray[np.float32]] = {}

    def matrix(name: str, *dims: int, scale: float = 0.3) -> None:
        arrays[name] = (rng.standard_normal(dims) * scale).astype(np.float32)

    def dense(name: str, inner: int, outer: int) -> None:
        matrix(f"{name}.weight", outer, inner)
        matrix(f"{name}.bias", outer)

    def norm(name: str) -> None:
        arrays[f"{name}.weight"] = (1 + rng.standard_normal(hidden) * 0.1).astype(np.float32)
        matrix(f"{name}.bias", hidden, scale=0.1)

    embeddings = f"{prefix}embeddings."
    matrix(f"{embeddings}word_embeddings.weight", len(WORDS), hidden)
    matrix(f"{embeddings}position_embeddings.weight", shape.positions + first, hidden)
    matrix(f"{embeddings}token_type_embeddings.weight", shape.types, hidden)
    norm(f"{embeddings}LayerNorm")
    for index in range(shape.layers):
        layer = f"{prefix}encoder.layer.{index}."
        for part in ("query", "key", "value"):
            dense(f"{layer}attention.self.{part}", hidden, hidden)
        dense(f"{layer}attention.output.dense", hidden, hidden)
        norm(f"{layer}attention.output.LayerNorm")
        dense(f"{layer}intermediate.dense", hidden, shape.intermediate)
        dense(f"{layer}output.dense", shape.intermediate, hidden)
        norm(f"{layer}output.LayerNorm")
    if shape.family == "bert":
        dense(f"{prefix}pooler.dense", hidden, hidden)
    if shape.task == "ForSequenceClassification":
        if shape.family == "bert":
            dense("classifier", hidden, 1)
        else:
            dense("classifier.dense", hidden, hidden)
            dense("classifier.out_proj", hidden, 1)
    return arrays


def build_tokenizer() -> dict[str, object]:
    """Build BERT's tokenizer: WordPiece, lower case, [CLS] before and [SEP] after the
    text.
    """
    special = [
        {
            "id": index,
            "content": WORDS[index],
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for index in range(5)
    ]
    return {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": 8,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 8},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": special,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special("[CLS]", 0), _sequence("A", 0), _special("[SEP]", 0)],
            "pair": [
                _special("[CLS]", 0),
                _sequence("A", 0),
                _special("[SEP]", 0),
                _sequence("B", 1),
                _special("[SEP]", 1),
            ],
            "special_tokens": {
                name: {"id": name, "ids": [id], "tokens": [name]}
                for name, id in (("[CLS]", CLS), ("[SEP]", SEP))
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: index for index, word in enumerate(WORDS)},
        },
    }


def _special(name: str, type: int) -> dict[str, object]:
    return {"SpecialToken": {"id": name, "type_id": type}}


def _sequence(name: str, type: int) -> dict[str, object]:
    return {"Sequence": {"id": name, "type_id": type}}
