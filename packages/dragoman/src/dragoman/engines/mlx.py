"""The MLX engine: models of mlx-lm with Dragoman's continuous batching. Needs the extra
`mlx`; imported when selected.

A model of mlx-lm passes each layer's new keys and values to its cache and attends to
what it returns: here `PagedCache` returns those of several sequences, gathered from one
pool and padded. Its mask excludes padding and later tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.errors import EngineError
from .batching import (
    BLOCK_SIZE,
    BatchingEngine,
    BlockFiles,
    Chunk,
    EngineLimits,
    NumpySampledRows,
    SamplingState,
    build_rng,
)
from .batching.limit_reduction import (
    Limits,
    compute_reducible,
    find_limits,
    reduce_attributes,
)
from .batching.paging_self_check import build_trial_prompts, check_paging, find_reason
from .safetensors_reader import Tensors

Floats = NDArray[np.float32]
Array: TypeAlias = Any
Network: TypeAlias = Any
"""A model of mlx-lm: called with [rows, tokens] ids and a list of caches, it returns
[rows, tokens, vocab] logits.
"""

try:
    mx: Any = import_module("mlx.core")
    tree_flatten: Any = import_module("mlx.utils").tree_flatten
    load_model: Any = import_module("mlx_lm.utils").load_model
    caches: Any = import_module("mlx_lm.models.cache")
except ImportError as error:
    raise EngineError(f"{error}; this engine needs `pip install 'dragoman[mlx]'`") from error


class ChunkGroup:
    """Chunks of equal length, computed as one batch.

    ids: [rows, tokens] token ids.
    offset: [rows] positions of the first tokens.
    write_slots: [rows * tokens] slots of the pool for new keys and values.
    read_slots: [rows, keys] slots of the pool; key k of a row has position k.
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        width = -(-max(chunk.end for chunk in chunks) // BLOCK_SIZE)
        # Block 0 is never allocated: padding of the table points to it and is masked.
        tables = mx.array([(chunk.sequence.blocks + [0] * width)[:width] for chunk in chunks])
        spans = [range(chunk.begin, chunk.end) for chunk in chunks]
        self.ids = mx.array([chunk.sequence.tokens[chunk.begin : chunk.end] for chunk in chunks])
        self.offset = mx.array([chunk.begin for chunk in chunks])
        self.write_slots = mx.array(
            [
                chunk.sequence.find_slot(position)
                for chunk, span in zip(chunks, spans, strict=True)
                for position in span
            ]
        )
        self.read_slots = (tables[:, :, None] * BLOCK_SIZE + mx.arange(BLOCK_SIZE)).reshape(
            len(chunks), -1
        )
        self._positions = mx.array([list(span) for span in spans])

    def build_mask(self, window: int | None) -> Array:
        """Build the mask [rows, 1, tokens, keys], True where a token attends to a key."""
        keys = mx.arange(self.read_slots.shape[1])
        tokens = self._positions[:, :, None]
        visible = keys <= tokens
        if window is not None:
            visible = visible & (keys > tokens - window)
        return visible[:, None]


class PagedCache:
    """The keys and values of one layer, [slots, heads, width] each, allocated on first
    use.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_slots = num_blocks * BLOCK_SIZE
        self._group: ChunkGroup | None = None
        self.keys: Array = None
        self.values: Array = None

    def set_group(self, group: ChunkGroup) -> None:
        self._group = group

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Zero reused blocks: stale NaNs could affect a sequence, since 0 * NaN is NaN."""
        if self.keys is not None and blocks:
            slots = mx.array(
                [block * BLOCK_SIZE + offset for block in blocks for offset in range(BLOCK_SIZE)]
            )
            self.keys[slots] = 0
            self.values[slots] = 0

    def read_block(self, block: int) -> Iterator[tuple[str, Array]]:
        """Yield the keys and values of a block, by name."""
        span = slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
        yield "keys", self.keys[span]
        yield "values", self.values[span]

    def restore(self, block: int, keys: Array, values: Array) -> None:
        """Write a block. keys, values: [BLOCK_SIZE, heads, width]."""
        self._allocate(keys, values)
        span = slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
        self.keys[span] = keys
        self.values[span] = values

    def _allocate(self, keys: Array, values: Array) -> None:
        """Allocate keys and values with this dtype and these last two dimensions."""
        if self.keys is None:
            self.keys = mx.zeros((self._num_slots, *keys.shape[-2:]), keys.dtype)
            self.values = mx.zeros((self._num_slots, *values.shape[-2:]), values.dtype)

    @property
    def bytes_per_token(self) -> int:
        return 0 if self.keys is None else int(self.keys[0].nbytes + self.values[0].nbytes)

    @property
    def offset(self) -> Array:
        """The positions at which rotary embeddings begin. The name is mlx-lm's."""
        assert self._group is not None
        return self._group.offset

    def make_mask(
        self, count: int, *, return_array: bool = False, window_size: int | None = None
    ) -> Array:
        """Build the attention mask. The name is mlx-lm's."""
        del count, return_array
        assert self._group is not None
        return self._group.build_mask(window_size)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Write new keys and values, and return those of the whole sequences. The name
        is mlx-lm's.

        keys, values: [rows, heads, tokens, width].
        """
        assert self._group is not None
        group = self._group
        keys = keys.transpose(0, 2, 1, 3)
        values = values.transpose(0, 2, 1, 3)
        self._allocate(keys, values)
        self.keys[group.write_slots] = keys.reshape(-1, *self.keys.shape[1:])
        self.values[group.write_slots] = values.reshape(-1, *self.values.shape[1:])
        return self.keys[group.read_slots].transpose(0, 2, 1, 3), self.values[
            group.read_slots
        ].transpose(0, 2, 1, 3)


TIED_WEIGHT = "lm_head.weight"
"""A tensor that checkpoints with tied embeddings may contain redundantly."""


class MlxModel:
    """Implements `batching.Model`. Holds the weights; each runner has its own KV cache."""

    def __init__(self, network: Network, *, vocab: int, max_positions: int) -> None:
        self._network = network
        self._vocab = vocab
        self._max_positions = max_positions

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
        if all(name in tensors for name in shapes):
            staged = [
                (name, mx.array(tensors.take(name, *current.shape)).astype(current.dtype))
                for name, current in shapes.items()
            ]
            if TIED_WEIGHT not in shapes:
                tensors.drop(TIED_WEIGHT)
            tensors.check_all_used()
        else:
            staged = self._convert(tensors, shapes)
        # Now, since a lazy array can be evaluated only on the thread that built it.
        mx.eval([value for _, value in staged])

        def apply() -> None:
            self._network.load_weights(staged)
            mx.eval(self._network.parameters())

        return apply

    def _convert(self, tensors: Tensors, shapes: dict[str, Array]) -> list[tuple[str, Array]]:
        """Read tensors by the names of a saved checkpoint (experts one by one), which
        mlx-lm converts at startup too. Raises EngineError.
        """
        weights = {
            name: mx.array(tensors.take(name, *shape))
            for name, (_, shape) in tensors.layout.items()
        }
        if hasattr(self._network, "sanitize"):
            try:
                weights = self._network.sanitize(weights)
            except Exception as error:  # the library's code may raise anything
                raise EngineError(
                    f"mlx-lm cannot load the weights: {find_reason(error)}"
                ) from error
        for name, current in shapes.items():
            if name not in weights:
                raise EngineError(f"the weights contain no tensor {name}")
            if weights[name].shape != current.shape:
                raise EngineError(f"{name} has shape {weights[name].shape}, not {current.shape}")
        if unexpected := sorted(weights.keys() - shapes.keys() - {TIED_WEIGHT}):
            raise EngineError(f"the weights contain unexpected tensors: {unexpected[:4]}")
        return [(name, weights[name].astype(current.dtype)) for name, current in shapes.items()]

    def prepare_discard(self) -> None:
        """Return None: freeing the weights is not supported."""


class MlxRunner:
    """Implements `batching.Runner`. Prompt chunks are computed one by one, single
    tokens as a batch.

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
        new_blocks = [
            block
            for chunk in chunks
            for block in chunk.sequence.blocks[-(-chunk.begin // BLOCK_SIZE) :]
        ]
        for cache in self._caches:
            cache.zero_blocks(new_blocks)
        states = MlxStates(chunks)
        for index, chunk in enumerate(chunks):
            if chunk.num_tokens > 1:
                # All but the last token, which is computed in one batch with those of
                # the other sequences.
                logits = self._compute([Chunk(chunk.sequence, chunk.begin, chunk.end - 1)])[0]
                if chunk.sequence.prompt_logprobs is not None:
                    states.prefix_logits[index] = logits
                self._evaluate(*states.prefix_logits.values())
        singles = [Chunk(chunk.sequence, chunk.end - 1, chunk.end) for chunk in chunks]
        states.last_rows = self._compute(singles)[:, -1]
        self._evaluate(states.last_rows)
        return states

    def save(self, block: int) -> bytes:
        """Serialize a block as safetensors: keys and values of each layer, by its
        index.
        """
        layers = enumerate(self._caches)
        parts = {
            f"{index}.{name}": part
            for index, cache in layers
            for name, part in cache.read_block(block)
        }
        file = BytesIO()
        mx.save_safetensors(file, parts)
        return file.getvalue()

    def restore(self, block: int, contents: bytes) -> None:
        parts = mx.load(BytesIO(contents), format="safetensors")
        for index, cache in enumerate(self._caches):
            cache.restore(block, parts[f"{index}.keys"], parts[f"{index}.values"])
        self._evaluate()

    def _evaluate(self, *arrays: Array) -> None:
        """Evaluate the pools and the given arrays now. A pending reference to an old
        pool would make the next write copy it.
        """
        mx.eval(*arrays, *(array for cache in self._caches for array in (cache.keys, cache.values)))

    def _compute(self, chunks: Sequence[Chunk]) -> Array:
        group = ChunkGroup(chunks)
        for cache in self._caches:
            cache.set_group(group)
        return self._network(group.ids, cache=self._caches)


class MlxStates:
    """Implements `batching.StepStates`.

    last_rows: [chunks, vocab] logits after each chunk's last token.
    prefix_logits: logits after the tokens before the last one, by index of the chunk;
        only for prompt_logprobs.
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
        parts = (
            [_to_numpy(self.prefix_logits[index][begin : min(end, count - 1)])]
            if begin < count - 1
            else []
        )
        if end == count:
            parts.append(self.compute_last_logits([index]))
        return np.concatenate(parts)


def _to_numpy(logits: Array) -> Floats:
    return np.array(logits.astype(mx.float32))


def load_network(
    directory: Path, *, dtype: str = "auto", trust_remote_code: bool
) -> tuple[Network, dict[str, object]]:
    """Load the model in a directory and its config.json. Raises EngineError for an
    unsupported model.
    """
    if not list(directory.glob("model*.safetensors")):
        raise EngineError(
            f"{directory} contains no model*.safetensors; other formats are not supported"
        )
    try:
        network, config = load_model(directory, trust_remote_code=trust_remote_code)
    except Exception as error:  # the library's code may raise anything
        raise EngineError(f"mlx-lm cannot load {directory}: {find_reason(error)}") from error
    if dtype != "auto":
        network.set_dtype(mx.__dict__[dtype])
    return network, config


_GPU_KV_BYTES = 4 << 30
_CPU_KV_BYTES = 1 << 28


class _ModelShape(msgspec.Struct):
    """The fields of config.json that the engine needs."""

    vocab_size: Annotated[int, msgspec.Meta(gt=0)]
    max_position_embeddings: Annotated[int, msgspec.Meta(gt=0)] = 4096


def load(
    directory: Path,
    limits: EngineLimits,
    *,
    dtype: str = "auto",
    trust_remote_code: bool = False,
    files: BlockFiles | None = None,
) -> BatchingEngine:
    """Load the engine, not started yet, for a directory that mlx-lm can load.

    By default the KV cache takes 4 GiB of a GPU, or 256 MiB of a CPU's memory.

    dtype: dtype of the computation, as in mlx; `auto` uses the checkpoint's.
    files: as in BatchingEngine.

    Raises: EngineError for an unsupported model.
    """
    network, config_json = load_network(directory, dtype=dtype, trust_remote_code=trust_remote_code)
    try:
        shape = msgspec.convert(config_json.get("text_config", config_json), _ModelShape)
    except msgspec.ValidationError as error:
        raise EngineError(f"{directory / 'config.json'}: {error}") from error
    model, bytes_per_token = build_paged_model(
        network, vocab=shape.vocab_size, max_positions=shape.max_position_embeddings
    )
    kv_bytes = _GPU_KV_BYTES if mx.default_device().type == mx.gpu else _CPU_KV_BYTES
    config = limits.build_config(
        max_positions=model.max_positions,
        num_kv_tokens=max(kv_bytes // bytes_per_token, 1),
        max_num_batched_tokens=512,
        max_step_pairs=1 << 22,
    )
    return BatchingEngine(model, config, build_rng, name="mlx-engine", files=files)


def build_paged_model(network: Network, *, vocab: int, max_positions: int) -> tuple[MlxModel, int]:
    """Build the paged model. Returns it and its KV bytes per token.

    Raises: EngineError if its logits differ from the network's own.
    """
    model = MlxModel(network, vocab=vocab, max_positions=max_positions)
    prompts = build_trial_prompts(vocab, max_positions)
    modules = network.modules()
    limits = find_limits([*modules, *(module.args for module in modules if "args" in vars(module))])
    runners: list[MlxRunner] = []

    def build_paged_runner(num_blocks: int, num_state_slots: int) -> MlxRunner:
        runners.append(model.build_runner(num_blocks, num_state_slots))
        return runners[0]

    kind = f"a model of mlx-lm's `{type(network).__module__.rpartition('.')[2]}`"

    def compute(limits: Limits) -> list[Floats]:
        with reduce_attributes(limits):
            return [_compute_reference(network, prompt) for prompt in prompts]

    limits, expected = compute_reducible(limits, compute, kind)
    with reduce_attributes(limits):
        check_paging(model, build_paged_runner, expected, kind=kind, tolerance=5e-2)
    return model, runners[0].bytes_per_token


def _compute_reference(network: Network, prompt: list[int]) -> Floats:
    """Compute the network's own logits of a prompt."""
    cache = caches.make_prompt_cache(network)
    return np.array(network(mx.array([prompt]), cache=cache)[0].astype(mx.float32))
