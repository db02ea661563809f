"""Embeddings of a causal language model, such as Qwen3-Embedding: the last hidden states
of the library's base model, pooled as `modules.json` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.encoder_requests import EmbeddingInfo, Embeddings, EmbedRequest
from ...core.engine import Health
from ...core.request_checks import check_ids
from ..dynamic_batcher import Batcher
from ..encoder_config import read_pooling
from ..hardware import count_usable_cores
from ..pooled_outputs import (
    build_embedding_info,
    build_embeddings,
    check_max_model_len,
    pool_states,
)
from .backend import Network, library, torch
from .load_network import TransformersOptions, load_network

Floats = NDArray[np.float32]


class TransformersEmbedder:
    """Implements `core.engine.Embedder` on its own thread.

    Texts of the same length are computed together, without padding.
    """

    def __init__(self, network: Network, embedding_info: EmbeddingInfo, max_waiting: int) -> None:
        self._network = network
        self._vocab: int = network.config.get_text_config().vocab_size
        self._embedding_info = embedding_info
        self._batcher: Batcher[tuple[int, ...], Floats] = Batcher(
            self._compute,
            len,
            max_waiting=max_waiting,
            name="transformers-embedder",
            probe=(0,),
        )

    @property
    def embedding_info(self) -> EmbeddingInfo:
        return self._embedding_info

    async def start(self) -> None:
        self._batcher.start()

    async def stop(self) -> None:
        await self._batcher.stop()

    def health(self) -> Health:
        return self._batcher.health()

    async def embed(self, request: EmbedRequest) -> Embeddings:
        check_ids([id for ids in request.inputs for id in ids], self._vocab, "input")
        vectors = await self._batcher.run(request.inputs)
        return build_embeddings(vectors, request, self._embedding_info)

    def _compute(self, batch: Sequence[tuple[int, ...]]) -> list[Floats]:
        indices_by_length: dict[int, list[int]] = {}
        for index, ids in enumerate(batch):
            indices_by_length.setdefault(len(ids), []).append(index)
        vectors: dict[int, Floats] = {}
        for indices in indices_by_length.values():
            ids = torch.tensor([batch[index] for index in indices], device=self._network.device)
            with torch.inference_mode():
                output = self._network(input_ids=ids, use_cache=False)
            states: Floats = output.last_hidden_state.float().cpu().numpy()
            for index, rows in zip(indices, states, strict=True):
                vectors[index] = pool_states(rows, self._embedding_info.pooling)
        return [vectors[index] for index in range(len(batch))]


def load(
    directory: Path,
    options: TransformersOptions,
    *,
    max_model_len: int | None = None,
    max_waiting: int = 1024,
) -> TransformersEmbedder:
    """Load an embedder, not started yet, from a directory with modules.json.

    max_model_len: tokens of an input, at most the model's positions; by default as
        configured in the directory.

    Raises: EngineError for an unsupported model.
    """
    pooling = read_pooling(directory)
    network = load_network(directory, options, library.AutoModel)
    if network.device.type == "cpu":
        torch.set_num_threads(options.threads or count_usable_cores())
    config = network.config.get_text_config()
    max_positions: int = config.max_position_embeddings
    check_max_model_len(max_model_len, max_positions)
    info = build_embedding_info(pooling, config.hidden_size, max_positions, max_model_len)
    return TransformersEmbedder(network, info, max_waiting)
