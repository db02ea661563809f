"""A model of mlx-lm as a batching model. Independent of requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.errors import EngineError
from ..arrays.weights import Tensors
from ..batching import BLOCK_SIZE, Chunk, NumpySampledRows, SamplingState
from .backend import Array, Network, load_model, mx, tree_flatten
from .paged_cache import ChunkGroup, PagedCache

Floats = NDArray[np.float32]

TIED_WEIGHT = "lm_head.weight"
"""A tensor that checkpoints with tied embeddings may contain redundantly."""


class MlxModel:
    """As `batching.Model`. Holds the weights; each runner has its own KV cache."""

    def __init__(self, network: Network, *, vocab: int, max_positions: int) -> None:
        self._network, self._vocab, self._max_positions = network, vocab, max_positions

    @property
    def vocab(self) -> int:
        return self._vocab

    @property
    def max_positions(self) -> int:
        return self._max_positions

    @property
    def rope_window(self) -> None:
        return None

    @property
    def has_state(self) -> bool:
        return False

    def build_runner(self, num_blocks: int, num_state_slots: int = 0) -> MlxRunner:
        del num_state_slots
        return MlxRunner(self._network, num_blocks)

    def prepare_weights(self, tensors: Tensors) -> Callable[[], None]:
        shapes = dict(tree_flatten(self._network.parameters()))
        staged = [
            (name, mx.array(tensors.take(name, *current.shape)).astype(current.dtype))
            for name, current in shapes.items()
        ]
        if TIED_WEIGHT not in shapes:
            tensors.drop(TIED_WEIGHT)
        tensors.check_all_used()

        def apply() -> None:
            self._network.load_weights(staged)
            mx.eval(self._network.parameters())

        return apply

    def prepare_discard(self) -> None:
        """Not supported: the weights stay in memory."""


class MlxRunner:
    """As `batching.Runner`. Prompt chunks are computed one by one, single tokens as a batch.

    mlx is lazy: unused logits are not computed.
    """

    def __init__(self, network: Network, num_blocks: int) -> None:
        self._network = network
        self._caches = [PagedCache(num_blocks) for _ in network.layers]

    def close(self) -> None:
        for cache in self._caches:
            cache.keys = cache.values = None
        mx.clear_cache()

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token over all allocated layers."""
        return sum(cache.bytes_per_token for cache in self._caches)

    def forward(self, chunks: Sequence[Chunk]) -> MlxStates:
        new_blocks = [block for chunk in chunks for block in chunk.sequence.blocks[-(-chunk.begin // BLOCK_SIZE) :]]
        for cache in self._caches:
            cache.zero_blocks(new_blocks)
        states = MlxStates(chunks)
        for index, chunk in enumerate(chunks):
            if chunk.num_tokens > 1:
                # Without the last token, which is computed with those of the other sequences in one batch.
                logits = self._compute([Chunk(chunk.sequence, chunk.begin, chunk.end - 1)])[0]
                if chunk.sequence.prompt_logprobs is not None:
                    states.prefix_logits[index] = logits
                self._evaluate(*states.prefix_logits.values())
        singles = [Chunk(chunk.sequence, chunk.end - 1, chunk.end) for chunk in chunks]
        states.last_rows = self._compute(singles)[:, -1]
        self._evaluate(states.last_rows)
        return states

    def save(self, block: int) -> bytes:
        """Serialize a block as safetensors: keys and values of each layer, by its index."""
        layers = enumerate(self._caches)
        parts = {f"{index}.{name}": part for index, cache in layers for name, part in cache.read_block(block)}
        file = BytesIO()
        mx.save_safetensors(file, parts)
        return file.getvalue()

    def restore(self, block: int, contents: bytes) -> None:
        parts = mx.load(BytesIO(contents), format="safetensors")
        for index, cache in enumerate(self._caches):
            cache.restore(block, parts[f"{index}.keys"], parts[f"{index}.values"])
        self._evaluate()

    def _evaluate(self, *arrays: Array) -> None:
        """Evaluate the pools and the given arrays now. A pending reference to an old pool would make the next write
        copy it."""
        mx.eval(*arrays, *(array for cache in self._caches for array in (cache.keys, cache.values)))

    def _compute(self, chunks: Sequence[Chunk]) -> Array:
        group = ChunkGroup(chunks)
        for cache in self._caches:
            cache.set_group(group)
        return self._network(group.ids, cache=self._caches)


class MlxStates:
    """As `batching.StepStates`.

    last_rows: [chunks, vocab] logits after each chunk's last token.
    prefix_logits: logits of the tokens before it, by chunk.
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self.last_rows: Array = None
        self.prefix_logits: dict[int, Array] = {}

    def compute_last_logits(self, indices: Sequence[int]) -> Floats:
        return _to_numpy(self.last_rows[mx.array(list(indices))])

    def sample(
        self, indices: Sequence[int], states: Sequence[SamplingState], masks: Sequence[bytes | None]
    ) -> NumpySampledRows:
        return NumpySampledRows(self.compute_last_logits(indices), states, masks)

    def compute_span_logits(self, index: int, begin: int, end: int) -> Floats:
        count = self._chunks[index].num_tokens
        parts = [_to_numpy(self.prefix_logits[index][begin : min(end, count - 1)])] if begin < count - 1 else []
        if end == count:
            parts.append(self.compute_last_logits([index]))
        return np.concatenate(parts)


def _to_numpy(logits: Array) -> Floats:
    return np.array(logits.astype(mx.float32))


def load_network(directory: Path, *, dtype: str = "auto", trust_remote_code: bool) -> tuple[Network, dict[str, object]]:
    """Load the model in a directory and its config.json. Raises EngineError for an unsupported model."""
    if not list(directory.glob("model*.safetensors")):
        raise EngineError(f"{directory} contains no model*.safetensors; other formats are not supported")
    try:
        network, config = load_model(directory, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise EngineError(f"mlx-lm cannot load {directory}: {error}") from error
    if dtype != "auto":
        network.set_dtype(mx.__dict__[dtype])
    return network, config
