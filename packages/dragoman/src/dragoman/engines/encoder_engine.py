"""Engines over an encoder in numpy: embeddings of texts, scores of text pairs.

A text's vectors are bitwise independent of the rest of its batch: texts share the
matrix products, whose rows are independent, and each attends to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .batch_invariant_matmul import ROWS, BlockSizes, share_block_sizes
from .batched_encoder import BatchedEmbedder, BatchedScorer, EncoderInput
from .bert import Bert, load_linear
from .encoder_config import EncoderConfig, ScoringConfig, read_config
from .pooled_outputs import EmbeddingHead, build_embedding_info, check_max_model_len
from .safetensors_reader import Tensors
from .sentence_modules import PoolingConfig

Floats = NDArray[np.float32]


class _Encoder:
    """Implements `BatchNetwork`. head: maps the states of a text to the result."""

    def __init__(self, bert: Bert, head: Callable[[Floats], Floats]) -> None:
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
    bert = Bert(config, tensors, block_sizes)
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
            for prefix in ("", config.prefix):
                tensors.drop_all(f"{prefix}pooler.")
            for name in ("cls.", "lm_head.", "classifier."):
                tensors.drop_all(name)
        case ScoringConfig(activation, max_tokens, prompt):
            head = _build_head(config, tensors, block_sizes)
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
