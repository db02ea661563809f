"""Engine settings from GGUF metadata: sizes, end tokens."""

from __future__ import annotations

from ...core.errors import EngineError
from .gguf_metadata import GgufMetadata

_EOG = frozenset(
    [
        *(
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
            "<|flush|>",
            "<|calls|>",
            "<end_of_turn>",
        ),
        *(
            "<|endoftext|>",
            "</s>",
            "<|eom_id|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "[EOS]",
            "<|end_of_text|>",
            "<EOS>",
        ),
        *(
            "<end_of_utterance>",
            "<eos>",
            "<turn|>",
            "<|tool_response>",
            "<\uff5cend\u2581of\u2581sentence\uff5c>",
        ),
    ]
)
"""Token names at which llama.cpp always ends generation (src/llama-vocab.cpp,
special_eog_ids).
"""


_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


_MEAN_POOLING = 1


_BYTES_PER_NUMBER = 2
"""Bytes of a float16 in the KV cache."""


def find_end_tokens(metadata: GgufMetadata) -> frozenset[int]:
    """Find the end-of-generation ids. Raises EngineError if there are none."""
    declared = (metadata.get_number(f"tokenizer.ggml.{name}") for name in _END_KEYS)
    tokens = metadata.get_texts("tokenizer.ggml.tokens")
    names = {id: name for id, name in enumerate(tokens) if name in _EOG}
    if {"<|return|>", "<|call|>"} <= set(names.values()):
        # gpt-oss: <|end|> ends a message, not the response.
        names = {id: name for id, name in names.items() if name != "<|end|>"}
    end_ids = (
        frozenset(id for id in declared if id is not None and 0 <= id < len(tokens)) | names.keys()
    )
    if not end_ids:
        raise EngineError(f"{metadata.path} names no end-of-sequence token")
    return end_ids


def read_max_positions(metadata: GgufMetadata) -> int:
    """Read the longest context that the model was trained for, tokens."""
    length = metadata.get_number(metadata.build_architecture_key("context_length"))
    if length is None or length < 2:
        raise EngineError(f"{metadata.path} does not give a context length")
    return length


def read_pooling_type(metadata: GgufMetadata) -> int | None:
    """Read the pooling type (llama.cpp's llama_pooling_type); None for a generative
    model.
    """
    declared = metadata.get_number(metadata.build_architecture_key("pooling_type"))
    if (
        declared is None
        and metadata.get_flag(metadata.build_architecture_key("attention.causal")) is False
    ):
        return _MEAN_POOLING
    return declared or None


def read_dimensions(metadata: GgufMetadata) -> int:
    """Read the length of an embedding."""
    names = (
        metadata.build_architecture_key("embedding_length_out"),
        metadata.build_architecture_key("embedding_length"),
    )
    return next((number for number in map(metadata.get_number, names) if number), 0)


def compute_bytes_per_token(metadata: GgufMetadata) -> int:
    """Compute the KV cache bytes per token, assuming attention in every layer."""
    layers = metadata.get_number(metadata.build_architecture_key("block_count")) or 1
    hidden = metadata.get_number(metadata.build_architecture_key("embedding_length")) or 1
    heads = max(
        int(
            max(
                metadata.get_numbers(metadata.build_architecture_key("attention.head_count")),
                default=1,
            )
        ),
        1,
    )
    kv_heads = int(
        max(
            metadata.get_numbers(metadata.build_architecture_key("attention.head_count_kv")),
            default=heads,
        )
    )
    key = (
        metadata.get_number(metadata.build_architecture_key("attention.key_length"))
        or hidden // heads
    )
    value = (
        metadata.get_number(metadata.build_architecture_key("attention.value_length"))
        or hidden // heads
    )
    return max(layers * kv_heads * (key + value) * _BYTES_PER_NUMBER, 1)
