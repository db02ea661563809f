"""Engines over an encoder in numpy: embeddings of texts, scores of text pairs.

A text's vectors are bitwise independent of the rest of its batch: texts share the
matrix products, whose rows are independent, and each attends to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.encoder_requests import Pooling
from .activations import compute_gelu, compute_relu
from .batch_invariant_matmul import ROWS, BlockSizes, share_block_sizes
from .batched_encoder import BatchedEmbedder, BatchedScorer, EncoderInput
from .bert import Bert, load_linear
from .encoder_config import EncoderConfig, ModernBertConfig, ScoringConfig, read_config
from .modern_bert import ModernBert, load_norm
from .pooled_outputs import EmbeddingHead, build_embedding_info, check_max_model_len, pool_states
from .safetensors_reader import Tensors
from .sentence_modules import PoolingConfig

Floats = NDArray[np.float32]


class _Encoder:
    """Implements `BatchNetwork`. head: maps the states of a text to the result."""

    def __init__(self, bert: Bert | ModernBert, head: Callable[[Floats], Floats]) -> None:
        self._bert = bert
        self._head = head

    @property
    def vocab(self) -> int:
        return self._bert.config.vocab

    def compute(self, batch: Sequence[EncoderInput]) -> list[Floats]:
        return [self._head(states) for states in self._bert.compute_states(batch)]


def load(
    directory: Path, *, max_model_len: int | None = None, max_waiting: int = 1024
) -> BatchedEmbedder | BatchedScorer:
    """Load the engine for a directory of config.json and *.safetensors, not started
    yet.

    max_model_len: tokens of an input, at most the model's positions; by default as
        configured in the directory.

    Raises: EngineError for an unsupported model.
    """
    config, task = read_config(directory)
    max_positions = config.positions
    check_max_model_len(max_model_len, max_positions)
    tensors = Tensors(directory)
    block_sizes = share_block_sizes()
    bert = (
        Bert(config, tensors, block_sizes)
        if isinstance(config, EncoderConfig)
        else ModernBert(config, tensors, block_sizes)
    )
    match task:
        case PoolingConfig():
            pooling_head = EmbeddingHead(directory, task, config.hidden)
            embedding_info = build_embedding_info(
                task, pooling_head.dimensions, max_positions, max_model_len
            )
            engine = BatchedEmbedder(
                _Encoder(bert, pooling_head.compute), embedding_info, max_waiting
            )
            # Embeddings use neither BERT's pooler (trained for next-sentence
            # prediction) nor the language-model head.
            family = config.prefix if isinstance(config, EncoderConfig) else "model."
            for prefix in ("", family):
                tensors.drop_all(f"{prefix}pooler.")
            for name in ("cls.", "lm_head.", "classifier.", "head.", "decoder."):
                tensors.drop_all(name)
        case ScoringConfig(activation, max_tokens, prompt):
            head = (
                _build_head(config, tensors, block_sizes)
                if isinstance(config, EncoderConfig)
                else _build_modern_head(config, tensors, block_sizes)
            )
            # The pooler of a checkpoint that was trained from a language model.
            tensors.drop_all("mpnet.pooler.")
            limit = max_model_len or min(max_positions, max_tokens or max_positions)
            engine = BatchedScorer(
                _Encoder(bert, head), activation, limit, max_waiting, query_prompt=prompt
            )
    tensors.check_all_used()
    return engine


def _build_head(
    config: EncoderConfig, tensors: Tensors, block_sizes: BlockSizes
) -> Callable[[Floats], Floats]:
    """Build the head, from the first token's state to one number; BERT's pooler is
    RoBERTa's classifier.dense.
    """
    bert = config.family == "bert"
    dense = load_linear(
        tensors,
        block_sizes,
        "bert.pooler.dense" if bert else "classifier.dense",
        config.hidden,
        config.hidden,
    )
    last = load_linear(
        tensors, block_sizes, "classifier" if bert else "classifier.out_proj", config.hidden, 1
    )

    def compute_score(states: Floats) -> Floats:
        # Padded, because a product's rounding depends on the number of rows (see
        # `Linear`).
        rows = np.zeros((ROWS, config.hidden), np.float32)
        rows[0] = states[0]
        return last(np.tanh(dense(rows)))[0]

    return compute_score


def _build_modern_head(
    config: ModernBertConfig, tensors: Tensors, block_sizes: BlockSizes
) -> Callable[[Floats], Floats]:
    """Build ModernBERT's head, from the states of a pair to one number."""
    dense = load_linear(
        tensors,
        block_sizes,
        "head.dense",
        config.hidden,
        config.hidden,
        has_bias=config.has_head_bias,
    )
    norm = load_norm(config, tensors, "head.norm")
    last = load_linear(tensors, block_sizes, "classifier", config.hidden, 1)
    activate = compute_gelu if config.head_activation == "gelu" else compute_relu
    pooling = Pooling.CLS if config.head_pooling == "cls" else Pooling.MEAN

    def compute_score(states: Floats) -> Floats:
        rows = np.zeros((ROWS, config.hidden), np.float32)
        rows[0] = pool_states(states, pooling)
        return last(norm(activate(dense(rows))))[0]

    return compute_score
