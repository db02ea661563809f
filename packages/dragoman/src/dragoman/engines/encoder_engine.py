"""Engines over a BERT encoder: embeddings of texts, scores of text pairs.

A text's vectors are bitwise independent of the rest of its batch: texts share the
matrix products, whose rows are independent, and each attends to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ..core.encoder_requests import (
    EmbeddingInfo,
    Embeddings,
    EmbedRequest,
    RelevanceScores,
    ScoreRequest,
)
from ..core.engine import Health
from ..core.request_checks import check_ids
from .batch_invariant_matmul import ROWS, BlockSizes, share_block_sizes
from .bert import Bert, EncoderInput, Floats, load_linear
from .dynamic_batcher import Batcher
from .encoder_config import EncoderConfig, PoolingConfig, ScoringConfig, read_config
from .pooled_outputs import (
    build_embedding_info,
    build_embeddings,
    check_max_model_len,
    compute_sigmoid,
    pool_states,
)
from .safetensors_reader import Tensors

_MAX_BATCH_TOKENS = 4096
"""Tokens of a batch: larger matrix products are no faster."""


class _BatchedEngine:
    """An encoder on its own thread; `compute` maps the states of each text to a result."""

    def __init__(
        self, bert: Bert, compute: Callable[[Floats], Floats], max_tokens: int, max_waiting: int
    ) -> None:
        self._vocab = bert.config.vocab
        self.max_tokens = max_tokens
        self._batcher: Batcher[EncoderInput, Floats] = Batcher(
            lambda batch: [compute(states) for states in bert.compute_states(batch)],
            lambda item: len(item.ids),
            max_batch_tokens=_MAX_BATCH_TOKENS,
            max_waiting=max_waiting,
            name="encoder",
            probe=EncoderInput((0,)),
        )

    async def start(self) -> None:
        self._batcher.start()

    async def stop(self) -> None:
        await self._batcher.stop()

    def health(self) -> Health:
        return self._batcher.health()

    async def _run(self, inputs: Iterable[EncoderInput]) -> list[Floats]:
        batch = tuple(inputs)
        check_ids([id for item in batch for id in item.ids], self._vocab, "input")
        return await self._batcher.run(batch)


class BertEmbedder(_BatchedEngine):
    """A `core.engine.Embedder`."""

    def __init__(self, bert: Bert, embedding_info: EmbeddingInfo, max_waiting: int = 1024) -> None:
        super().__init__(
            bert,
            lambda states: pool_states(states, embedding_info.pooling),
            embedding_info.max_tokens,
            max_waiting,
        )
        self._embedding_info = embedding_info

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def embed(self, request: EmbedRequest) -> Embeddings:
        vectors = await self._run(EncoderInput(ids) for ids in request.inputs)
        return build_embeddings(vectors, request, self._embedding_info)


class BertScorer(_BatchedEngine):
    """A `core.engine.Scorer`. sigmoid: whether scores pass a sigmoid by default."""

    def __init__(
        self,
        bert: Bert,
        head: Callable[[Floats], Floats],
        *,
        sigmoid: bool,
        max_tokens: int,
        max_waiting: int = 1024,
    ) -> None:
        super().__init__(bert, head, max_tokens, max_waiting)
        self._sigmoid = sigmoid

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        logits = await self._run(
            EncoderInput(pair.ids, pair.second_start) for pair in request.pairs
        )
        use_sigmoid = self._sigmoid if request.activation is None else request.activation
        numbers = [float(logit[0]) for logit in logits]
        scores = tuple(map(compute_sigmoid, numbers)) if use_sigmoid else tuple(numbers)
        return RelevanceScores(scores, sum(len(pair.ids) for pair in request.pairs))


def load(
    directory: Path, *, max_model_len: int | None = None, max_waiting: int = 1024
) -> BertEmbedder | BertScorer:
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
            embedding_info = build_embedding_info(task, config.hidden, max_positions, max_model_len)
            engine = BertEmbedder(bert, embedding_info, max_waiting)
            # Embeddings use neither BERT's pooler (trained for next-sentence
            # prediction) nor the language-model head.
            for prefix in ("", config.prefix):
                tensors.drop_all(f"{prefix}pooler.")
            for name in ("cls.", "lm_head."):
                tensors.drop_all(name)
        case ScoringConfig(sigmoid):
            head = _build_head(config, tensors, block_sizes)
            engine = BertScorer(
                bert,
                head,
                sigmoid=sigmoid,
                max_tokens=max_model_len or max_positions,
                max_waiting=max_waiting,
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
