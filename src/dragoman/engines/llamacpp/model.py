"""What a GGUF file's metadata means for an engine: its sizes, its ends. Knows no process."""

from __future__ import annotations

from ...core.errors import EngineError
from .gguf import Metadata

_EOG = frozenset(
    [
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<EOS>"),
        *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    ]
)
"""Names at which llama.cpp ends an answer whatever the file says (src/llama-vocab.cpp, special_eog_ids)."""

_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_MEAN = 1
_KV_BYTES = 2
"""Of a number in the cache of keys and values: float16."""


def ends(metadata: Metadata) -> frozenset[int]:
    """Ids that end an answer. Raises EngineError where there are none."""
    named = (metadata.number(f"tokenizer.ggml.{name}") for name in _ENDS)
    tokens = metadata.texts("tokenizer.ggml.tokens")
    known = {id for id, name in enumerate(tokens) if name in _EOG}
    if {"<|return|>", "<|call|>"} <= set(tokens):  # gpt-oss: the end of a message is not that of an answer
        known -= {id for id in known if tokens[id] == "<|end|>"}
    found = frozenset(id for id in named if id is not None) | known
    if not found:
        raise EngineError(f"{metadata.path} names no end-of-sequence token")
    return found


def max_positions(metadata: Metadata) -> int:
    """The longest context that the model was trained for."""
    found = metadata.number(metadata.own("context_length"))
    if found is None or found < 2:
        raise EngineError(f"{metadata.path} does not give a context length")
    return found


def pooling_type(metadata: Metadata) -> int | None:
    """How it makes a vector (llama.cpp's llama_pooling_type), or a score; None for a model that generates."""
    said = metadata.number(metadata.own("pooling_type"))
    if said is None and metadata.flag(metadata.own("attention.causal")) is False:
        return _MEAN
    return said or None


def dimensions(metadata: Metadata) -> int:
    """Of a vector."""
    names = (metadata.own("embedding_length_out"), metadata.own("embedding_length"))
    return next((found for found in map(metadata.number, names) if found), 0)


def bytes_per_token(metadata: Metadata) -> int:
    """That keys and values of one token take, as if every layer kept them."""
    layers = metadata.number(metadata.own("block_count")) or 1
    hidden = metadata.number(metadata.own("embedding_length")) or 1
    heads = max(int(max(metadata.numbers(metadata.own("attention.head_count")), default=1)), 1)
    kv_heads = int(max(metadata.numbers(metadata.own("attention.head_count_kv")), default=heads))
    key = metadata.number(metadata.own("attention.key_length")) or hidden // heads
    value = metadata.number(metadata.own("attention.value_length")) or hidden // heads
    return max(layers * kv_heads * (key + value) * _KV_BYTES, 1)
