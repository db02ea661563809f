"""Write small GGUF files from directories in transformers' format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.engines.encoder.directories import CLS, PAD, PLAIN, SEP, UNK, WORDS, Shape
from tests.engines.encoder.directories import tensors as encoder_tensors

from dragoman.engines import tiny
from dragoman.engines.safetensors_reader import Tensors

Floats = NDArray[np.float32]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""GGUF's token types."""


def write_embedded(
    file: Path,
    *,
    marks: int = CONTROL,
    vocabulary: Callable[[Any], None] | None = None,
    split: int = 0,
) -> Path:
    """Write the embedded model with its tokenizer and its template, and return the
    (first) file.

    marks: the type of its control tokens.
    vocabulary: writes another vocabulary instead of its own.
    split: tensors per file; 0 writes one file.
    """
    write_llama(file, tiny.find_bundled_model(), marks=marks, vocabulary=vocabulary, split=split)
    return next(file.parent.glob(f"{file.stem}-00001-of-*.gguf")) if split else file


def write_llama(
    file: Path,
    directory: Path,
    *,
    marks: int = CONTROL,
    vocabulary: Callable[[Any], None] | None = None,
    split: int = 0,
    data_type: str = "F32",
    nan_tokens: Sequence[int] = (),
) -> None:
    """Write a Llama like the embedded model, with its kind of tokenizer.

    data_type: of matrices, in GGUF's words.
    nan_tokens: ids whose embeddings are NaN; what the model computes from others is
        unchanged.
    """
    gguf: Any = import_module("gguf")

    config = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama", split_max_tensors=split)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if vocabulary is None:
        add_byte_level(
            writer,
            json.loads((directory / "tokenizer.json").read_text()),
            marks,
            config["vocab_size"],
        )
    else:
        vocabulary(writer)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_chat_template((directory / "chat_template.jinja").read_text())
    kind = gguf.GGMLQuantizationType[data_type]
    written = tensors(directory, config)
    if nan_tokens:
        embeddings = written["token_embd.weight"]
        written.setdefault("output.weight", embeddings.copy())
        embeddings[list(nan_tokens)] = np.nan
    for name, tensor in written.items():
        if tensor.ndim == 1 or data_type == "F32":
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
    _finish(writer)


def write_encoder(file: Path, shape: Shape = PLAIN, *, pooling: int) -> Path:
    """Write the random encoder of the encoder engine's tests.

    pooling: a value of llama.cpp's llama_pooling_type.
    """
    gguf: Any = import_module("gguf")

    writer = gguf.GGUFWriter(file, "bert")
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([word if word.startswith("[") else _phantom(word) for word in WORDS])
    writer.add_token_types([CONTROL if word.startswith("[") else NORMAL for word in WORDS])
    writer.add_token_type_count(shape.types)
    writer.add_bos_token_id(CLS)
    writer.add_eos_token_id(SEP)
    writer.add_sep_token_id(SEP)
    writer.add_unk_token_id(UNK)
    writer.add_pad_token_id(PAD)
    for name, tensor in _rename_tensors(shape):
        writer.add_tensor(name, tensor)
    _finish(writer)
    return file


def _phantom(word: str) -> str:
    """Convert a WordPiece token to GGUF's form: words begin with a marker,
    continuations do not.
    """
    return word[2:] if word.startswith("##") else f"\u2581{word}"


_PARTS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "pooler.dense": "cls",
    "classifier": "cls.output",
}


def _rename_tensors(shape: Shape) -> Iterator[tuple[str, Floats]]:
    for name, tensor in encoder_tensors(shape).items():
        module, _, kind = name.removeprefix("bert.").rpartition(".")
        if module.startswith("encoder."):
            layer, _, part = module.removeprefix("encoder.layer.").partition(".")
            yield f"blk.{layer}.{_PARTS[part]}.{kind}", tensor
        elif shape.task != "Model" or _PARTS[module] != "cls":
            yield f"{_PARTS[module]}.{kind}", tensor


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_byte_level(writer: Any, tokenizer: Mapping[str, Any], marks: int, size: int = 0) -> None:
    """Add the byte-level vocabulary.

    size: unused tokens pad the vocabulary to this size.
    """
    vocab: dict[str, int] = tokenizer["model"]["vocab"] | {
        t["content"]: t["id"] for t in tokenizer["added_tokens"]
    }
    names = sorted(vocab, key=lambda name: vocab[name])
    unused = [f"<unused{n}>" for n in range(size - len(names))]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(names + unused)
    writer.add_token_types(
        [marks if name in special else NORMAL for name in names] + [UNUSED] * len(unused)
    )
    writer.add_token_merges(
        [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    )
    writer.add_add_bos_token(False)


def add_sentencepiece(writer: Any, size: int = 2048, last: int = UNUSED) -> None:
    """Add a vocabulary with scores instead of merges, built from this file's texts;
    `size` tokens, including bytes.

    last: the type of its last token.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    texts = [line.strip() for line in Path(__file__).read_text().splitlines() if line.strip()]
    trained.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=900, show_progress=False))
    found = json.loads(trained.to_str())["model"]["vocab"]
    words = sorted(found, key=lambda word: found[word])
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    names += [f"<unused{n}>" for n in range(size - len(names))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_types([*kinds, *[UNUSED] * (size - len(kinds) - 1), last])
    writer.add_token_scores([0.0] * 259 + [float(-n) for n in range(size - 259)])
    writer.add_bos_token_id(1)
    writer.add_unk_token_id(0)


def tensors(directory: Path, config: Mapping[str, Any]) -> dict[str, Floats]:
    found = Tensors(directory)
    hidden, vocab, heads, kv = (
        config[k]
        for k in ("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads")
    )
    dim = config["head_dim"]
    inner = config["intermediate_size"]
    out = {
        "token_embd.weight": found.take("model.embed_tokens.weight", vocab, hidden),
        "output_norm.weight": found.take("model.norm.weight", hidden),
    }
    if not config["tie_word_embeddings"]:
        out["output.weight"] = found.take("lm_head.weight", vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        theirs = f"model.layers.{layer}."
        ours = f"blk.{layer}."
        out |= {
            f"{ours}attn_norm.weight": found.take(f"{theirs}input_layernorm.weight", hidden),
            f"{ours}ffn_norm.weight": found.take(
                f"{theirs}post_attention_layernorm.weight", hidden
            ),
            f"{ours}attn_q.weight": permute(
                found.take(f"{theirs}self_attn.q_proj.weight", heads * dim, hidden), heads
            ),
            f"{ours}attn_k.weight": permute(
                found.take(f"{theirs}self_attn.k_proj.weight", kv * dim, hidden), kv
            ),
            f"{ours}attn_v.weight": found.take(
                f"{theirs}self_attn.v_proj.weight", kv * dim, hidden
            ),
            f"{ours}attn_output.weight": found.take(
                f"{theirs}self_attn.o_proj.weight", hidden, heads * dim
            ),
            f"{ours}ffn_gate.weight": found.take(f"{theirs}mlp.gate_proj.weight", inner, hidden),
            f"{ours}ffn_up.weight": found.take(f"{theirs}mlp.up_proj.weight", inner, hidden),
            f"{ours}ffn_down.weight": found.take(f"{theirs}mlp.down_proj.weight", hidden, inner),
        }
    return out


def permute(weight: Floats, heads: int) -> Floats:
    """Permute weights so that rotary pairs are adjacent, as llama.cpp's Llama expects."""
    rows, columns = weight.shape
    return (
        weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def write_projector(file: Path, *, patches: int = 2) -> Path:
    """Write a random LLaVA projector for the embedded model: a square of patches, one
    token per patch.
    """
    gguf: Any = import_module("gguf")

    width = 16
    inner = 32
    side = 8
    layers = 2
    hidden = json.loads((tiny.find_bundled_model() / "config.json").read_text())["hidden_size"]
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("mlp")
    writer.add_vision_use_gelu(True)
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(inner)
    writer.add_vision_block_count(layers)
    writer.add_vision_projection_dim(hidden)
    writer.add_vision_image_size(patches * side)
    writer.add_vision_patch_size(side)
    writer.add_vision_head_count(2)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (width, 3, side, side),
        "v.position_embd.weight": (patches**2, width),
        "mm.0.weight": (width, width),
        "mm.0.bias": (width,),
        "mm.2.weight": (hidden, width),
        "mm.2.bias": (hidden,),
    }
    block: dict[str, tuple[int, ...]] = {
        **{f"attn_{part}.weight": (width, width) for part in ("q", "k", "v", "out")},
        **{f"{norm}.{kind}": (width,) for norm in ("ln1", "ln2") for kind in ("weight", "bias")},
        "ffn_up.weight": (inner, width),
        "ffn_up.bias": (inner,),
        "ffn_down.weight": (width, inner),
        "ffn_down.bias": (width,),
    }
    shapes |= {f"v.blk.{n}.{name}": shape for n in range(layers) for name, shape in block.items()}
    for name, shape in shapes.items():
        writer.add_tensor(name, (0.3 * random.standard_normal(shape)).astype(np.float32))
    _finish(writer)
    return file
