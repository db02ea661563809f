"""Write random models in the directories of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.engines.tiny import find_bundled_model
from dragoman.engines.transformers.backend import library, torch

from ..encoder.directories import WORDS, build_tokenizer
from ..tiny.models import write_tensors

HIDDEN = 32
_COMMON = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    # Large enough for different texts to have different results.
    "initializer_range": 0.3,
}
_ENCODERS: Mapping[str, Mapping[str, object]] = {
    "bert": {"pad_token_id": 0},
    "roberta": {"pad_token_id": 0, "type_vocab_size": 2},
    "xlm-roberta": {"pad_token_id": 0, "type_vocab_size": 1},
    "mpnet": {"pad_token_id": 0},
    "electra": {"pad_token_id": 0, "embedding_size": HIDDEN},
    "modernbert": {
        "pad_token_id": 0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "local_attention": 8,
        "global_attn_every_n_layers": 3,
        "initializer_cutoff_factor": 2.0,
    },
}
YES, NO = 2048, 1573


def write_encoder_model(
    directory: Path,
    kind: str,
    task: str = "Model",
    *,
    tokenizer: Mapping[str, object] | None = None,
    **fields: object,
) -> Path:
    """Write an encoder with the tokenizer of BERT.

    tokenizer: tokenizer_config.json.
    fields: further fields of the configuration.
    """
    torch.manual_seed(0)
    settings = {**_COMMON, **_ENCODERS[kind], "vocab_size": len(WORDS), **fields}
    config = library.AutoConfig.for_model(kind, **settings)
    if task == "Model":
        model = library.AutoModel.from_config(config)
    else:
        config.num_labels = 1
        model = library.AutoModelForSequenceClassification.from_config(config)
    _randomize(model)
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps(build_tokenizer()))
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    config_file = {"tokenizer_class": "PreTrainedTokenizerFast", **special, **(tokenizer or {})}
    (directory / "tokenizer_config.json").write_text(json.dumps(config_file))
    return directory


def write_causal_model(directory: Path, kind: str = "qwen3", task: str = "CausalLM") -> Path:
    """Write a causal model with the bundled tokenizer, and a token `yes`."""
    torch.manual_seed(0)
    config = library.AutoConfig.for_model(
        kind,
        **_COMMON | {"max_position_embeddings": 512},
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=2056,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    if task == "CausalLM":
        model = library.AutoModelForCausalLM.from_config(config)
    else:
        config.num_labels = 1
        model = library.AutoModelForSequenceClassification.from_config(config)
    _randomize(model)
    model.save_pretrained(directory)
    bundled = find_bundled_model()
    tokenizer = json.loads((bundled / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["yes"] = YES
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config_file = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config_file))
    return directory


def _randomize(model: Any) -> None:
    """Set the tensors that the library initializes to zeros."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or not parameter.any():
            parameter.data.normal_(0, 0.2)


def write_modules(
    directory: Path, modules: Sequence[tuple[str, Mapping[str, object]]], **model: object
) -> Path:
    """Write modules.json with the modules after Transformer, and their files.

    modules: the name and the config.json of each.
    model: fields of config_sentence_transformers.json.
    """
    entries = [("", "Transformer")]
    for index, (name, config) in enumerate(modules, start=1):
        folder = f"{index}_{name}"
        entries.append((folder, name))
        (directory / folder).mkdir()
        (directory / folder / "config.json").write_text(json.dumps(config))
    packages = {
        "Transformer": "sentence_transformers.models",
        "LogitScore": "sentence_transformers.cross_encoder.modules",
    }
    content = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"{packages.get(name, 'sentence_transformers.models')}.{name}",
        }
        for index, (path, name) in enumerate(entries)
    ]
    (directory / "modules.json").write_text(json.dumps(content))
    if model:
        (directory / "config_sentence_transformers.json").write_text(json.dumps(model))
    return directory


def write_dense(
    folder: Path, inner: int, outer: int, *, bias: bool = True, residual: bool = False
) -> None:
    """Write the weights of a Dense module."""
    rng = np.random.default_rng(3)
    names: dict[str, tuple[int, ...]] = {"linear.weight": (outer, inner)}
    if bias:
        names["linear.bias"] = (outer,)
    if residual:
        names["residual.weight"] = (outer, inner)
    write_tensors(
        folder / "model.safetensors",
        {
            name: (rng.standard_normal(shape) * 0.3).astype(np.float32)
            for name, shape in names.items()
        },
    )
