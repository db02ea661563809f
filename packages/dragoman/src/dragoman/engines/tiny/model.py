"""A Llama in numpy with a paged KV cache: its configuration, rotary embedding,
attention, weights and forward pass.

A row of the result is bitwise independent of other sequences in the batch and of how a
prompt was chunked.

Attention is bitwise equal for one query or many: the keys of a sequence are split into
chunks of CHUNK from its beginning. Within a chunk sums have a fixed shape; over the
chunks they run in order. Masked keys add exact zeros, so neither padding nor the number
of chunks changes a result.

Rotary position embedding multiplies by complex numbers: a head's numbers i and i +
head_dim / 2 make up one complex number (`interleave` puts them side by side); rotating
it is one product. The formulas are transformers' (`modeling_rope_utils`), in float32 as
there.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.errors import EngineError
from ..arrays import BlockSizes, Linear, ROWS, Tensors, multiply, round_up
from ..batching import BLOCK_SIZE

# Configuration.


class RopeConfig(Struct, frozen=True):
    """Rotary position embedding. kind: the formula by its name in transformers'
    `modeling_rope_utils`.
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class LlamaConfig(Struct, frozen=True):
    """Dimensions of a Llama. max_positions: the longest context that it was trained
    for.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    eps: float
    is_tied: bool
    rope: RopeConfig

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Numbers per token and layer in the KV cache: keys, then values."""
        return 2 * self.kv_heads * self.head_dim


class _RopeFile(Struct):
    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class _File(Struct):
    """A config.json as transformers 4 or 5 writes it."""

    architectures: list[str]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float | None = None
    rope_parameters: _RopeFile | None = None
    rope_scaling: _RopeFile | None = None


def read_config(path: Path) -> LlamaConfig:
    """Read a config.json. Raises EngineError, which names the missing or unsupported
    field.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"{path} is not a valid Llama configuration: {error}") from error
    kv_heads = file.num_key_value_heads or file.num_attention_heads
    unsupported = None
    if file.architectures != ["LlamaForCausalLM"]:
        unsupported = f"architecture {file.architectures}"
    elif file.hidden_act != "silu":
        unsupported = f"hidden_act {file.hidden_act!r}"
    elif file.attention_bias or file.mlp_bias:
        unsupported = "a bias"
    elif file.num_attention_heads % kv_heads:
        unsupported = "a number of heads that is not a multiple of the key-value heads"
    if unsupported is not None:
        raise EngineError(f"{path}: {unsupported} is not supported by the tiny engine")
    # transformers 5 writes `rope_parameters`; 4 wrote `rope_theta`, and `rope_scaling`
    # if there was any.
    rope = file.rope_parameters or file.rope_scaling or _RopeFile()
    rope_type = rope.rope_type or rope.type or "default"
    if rope_type not in ("default", "linear", "llama3"):
        raise EngineError(f"{path}: rope_type {rope_type!r} is not supported by the tiny engine")
    return LlamaConfig(
        hidden=file.hidden_size,
        intermediate=file.intermediate_size,
        layers=file.num_hidden_layers,
        heads=file.num_attention_heads,
        kv_heads=kv_heads,
        # Files of older Llamas have no head_dim: there the widths of all heads add up
        # to `hidden_size`.
        head_dim=file.head_dim or file.hidden_size // file.num_attention_heads,
        vocab=file.vocab_size,
        max_positions=file.max_position_embeddings,
        eps=file.rms_norm_eps,
        is_tied=file.tie_word_embeddings,
        rope=RopeConfig(
            theta=rope.rope_theta or file.rope_theta or 10000.0,
            kind=rope_type,
            factor=rope.factor,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_max_position_embeddings=rope.original_max_position_embeddings,
        ),
    )


# Rotary position embedding.

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Rotations = NDArray[np.complex64]


class Rope:
    """The rotations of all positions; the table grows with the longest position."""

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        base = (1.0 / np.float32(config.theta) ** exponents).astype(np.float32)
        match config.kind:
            case "default":
                self._frequencies = base
            case "linear":
                self._frequencies = (base / np.float32(config.factor)).astype(np.float32)
            case "llama3":
                # Scale the frequencies: long wavelengths by the factor, short ones not
                # at all, those between by interpolation.
                rotations = config.original_max_position_embeddings * base / (2 * np.pi)
                low = config.low_freq_factor
                high = config.high_freq_factor
                unscaled_share = np.clip((rotations - low) / (high - low), 0.0, 1.0)
                scaled = (1 - unscaled_share) * base / config.factor + unscaled_share * base
                self._frequencies = scaled.astype(np.float32)
        self._table = self._compute(0, 512)

    def get_rotations(self, positions: Ints) -> Rotations:
        """Return the rotations [n, 1, head_dim / 2] of positions [n], shared by all
        heads.
        """
        last = int(positions.max(initial=0))
        if last >= len(self._table):
            # Extend to a power of two, so that a sequence that grows token by token
            # rarely extends the table.
            extension = self._compute(len(self._table), 1 << (last + 1).bit_length())
            self._table = np.concatenate((self._table, extension))
        return self._table[positions, None]

    def _compute(self, start: int, stop: int) -> Rotations:
        # In float32 as in transformers, rounding included; only sine and cosine are
        # computed from wider numbers.
        angles = np.arange(start, stop, dtype=np.float32)[:, None] * self._frequencies
        return np.exp(1j * angles.astype(np.float64)).astype(np.complex64)


def compute_interleaved_order(head_dim: int) -> Ints:
    """Compute the order of a head's numbers that makes the two parts of each rotated
    pair adjacent.

    Queries and keys are permuted alike, so their dot products do not change.
    """
    return np.arange(head_dim).reshape(2, head_dim // 2).T.reshape(-1)


# Attention.

CHUNK = 128
"""Number of keys that one matrix product sums over."""
CHUNK_BLOCKS = CHUNK // BLOCK_SIZE
_MAX_SCORES = 1 << 18
"""Limit of the scores in memory while a prompt is computed: 1 MiB of float32."""


class SingleQueries(Struct, frozen=True):
    """Rows start to stop of a batch: one query each, of sequences of similar length.

    tables: [rows, blocks], numbers of the sequences' blocks in the cache.
    mask: [rows, 1, chunks, 1, CHUNK], -inf at masked keys.
    """

    start: int
    stop: int
    tables: Ints
    mask: Floats


class SpanPart(Struct, frozen=True):
    """Queries begin to end of a span, which see `chunks` chunks of keys.

    mask: [last chunks, rows, CHUNK], -inf at masked keys; all chunks before these are
        visible.
    """

    begin: int
    end: int
    chunks: int
    mask: Floats


class QuerySpan(Struct, frozen=True):
    """Rows start to stop of a batch: consecutive queries of one sequence.

    table: [blocks], numbers of the sequence's blocks in the cache.
    """

    start: int
    stop: int
    table: Ints
    parts: tuple[SpanPart, ...]


def count_chunks(length: int) -> int:
    """Return the number of chunks for a length, rounded up to 2**n or 3 * 2**n.

    Few different numbers let sequences of similar length form groups; at most half of a
    group is padding.
    """
    chunks = -(-length // CHUNK)
    power = 1 << (chunks - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= chunks else power


class Attention:
    """The attention of one model. When it is built, it tests which BLAS calls compute
    all rows independently.
    """

    def __init__(self, config: LlamaConfig, block_sizes: BlockSizes) -> None:
        self._kv_heads = config.kv_heads
        self._group = config.group_size
        self._head_dim = config.head_dim
        # Query heads that share a key head are rows of one product, padded so that BLAS
        # uses the same kernel in all calls.
        self._row_multiple = max(4, 1 << (config.group_size - 1).bit_length())
        sample = np.random.default_rng(1).standard_normal(
            (CHUNK, 2 * self._kv_heads, self._head_dim), np.float32
        )
        self._score_block = block_sizes.find_block_size(sample[:, 0].T, self._row_multiple)
        self._value_block = block_sizes.find_block_size(
            sample[:, self._kv_heads], self._row_multiple
        )

    def build_single(self, start: int, positions: Ints, tables: Ints) -> SingleQueries:
        """Build single queries. positions: one per query. tables: zero-padded to a
        whole number of chunks.
        """
        width: int = tables.shape[1] * BLOCK_SIZE
        keys = np.arange(width).reshape(1, 1, -1, 1, CHUNK)
        mask = _build_mask(keys, positions[:, None, None, None, None])
        return SingleQueries(start=start, stop=start + len(positions), tables=tables, mask=mask)

    def build_span(self, start: int, count: int, position: int, table: Ints) -> QuerySpan:
        """Build a span of queries. position: that of the first. table: zero-padded to a
        whole number of chunks.
        """
        keys = len(table) * BLOCK_SIZE
        # Parts keep the scores in the processor's cache, regardless of the length of
        # the prompt.
        step = max(8, _MAX_SCORES // (self._kv_heads * self._group * keys))
        bounds = [*range(0, count, step), count]
        parts: list[SpanPart] = []
        for begin, end in pairwise(bounds):
            # Later keys are left out entirely; only the chunks from the first query's
            # on need a mask.
            chunks = -(-(position + end) // CHUNK)
            first = (position + begin) // CHUNK
            masked_keys = np.arange(first * CHUNK, chunks * CHUNK).reshape(-1, 1, CHUNK)
            rows = round_up((end - begin) * self._group, self._row_multiple)
            queries = (position + begin + np.arange(rows) // self._group)[:, None]
            parts.append(
                SpanPart(
                    begin=begin, end=end, chunks=chunks, mask=_build_mask(masked_keys, queries)
                )
            )
        return QuerySpan(start=start, stop=start + count, table=table, parts=tuple(parts))

    def attend_single(self, queries: Floats, single: SingleQueries, cache: Floats) -> Floats:
        """Compute attention for single queries, [rows, heads * head_dim].

        queries: [rows, heads * head_dim], scaled.
        cache: [blocks, BLOCK_SIZE * kv_width], that of this layer.
        """
        rows = len(queries)
        kv = cache.take(single.tables, axis=0).reshape(
            rows, -1, CHUNK, 2 * self._kv_heads, self._head_dim
        )
        keys = kv[:, :, :, : self._kv_heads].transpose(0, 3, 1, 4, 2)
        values = kv[:, :, :, self._kv_heads :].transpose(0, 3, 1, 2, 4)
        padded = np.zeros((rows, self._kv_heads, 1, self._row_multiple, self._head_dim), np.float32)
        padded[:, :, 0, : self._group] = queries.reshape(
            rows, self._kv_heads, self._group, self._head_dim
        )
        scores = multiply(padded, keys, self._score_block)
        scores += single.mask
        mixed = self._mix_values(scores, values)
        return mixed[:, :, : self._group].reshape(rows, -1)

    def attend_span(self, queries: Floats, span: QuerySpan, cache: Floats) -> Floats:
        """Compute attention for the queries of one span; see `attend_single`."""
        kv = cache.take(span.table, axis=0).reshape(-1, CHUNK, 2 * self._kv_heads, self._head_dim)
        keys = kv[:, :, : self._kv_heads].transpose(2, 0, 3, 1)
        values = kv[:, :, self._kv_heads :].transpose(2, 0, 1, 3)
        outputs: list[Floats] = []
        for part in span.parts:
            count = part.end - part.begin
            chunks = part.chunks
            masked = len(part.mask)
            heads = queries[part.begin : part.end].reshape(
                count, self._kv_heads, self._group, self._head_dim
            )
            heads = heads.transpose(1, 0, 2, 3)
            padded = np.zeros((self._kv_heads, 1, part.mask.shape[1], self._head_dim), np.float32)
            padded[:, 0, : count * self._group] = heads.reshape(self._kv_heads, -1, self._head_dim)
            scores = multiply(padded, keys[:, :chunks], self._score_block)
            scores[:, chunks - masked :] += part.mask
            mixed = self._mix_values(scores, values[:, :chunks])[:, : count * self._group]
            outputs.append(
                mixed.reshape(self._kv_heads, count, -1).transpose(1, 0, 2).reshape(count, -1)
            )
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)

    def _mix_values(self, scores: Floats, values: Floats) -> Floats:
        """Compute the softmax over chunks and keys, times the values.

        scores: [..., chunks, rows, CHUNK], overwritten. values: [..., chunks, CHUNK,
            head_dim].
        """
        highest = scores.max(axis=-1, keepdims=True)
        if highest.shape[-3] > 1:
            highest = highest.max(axis=-3, keepdims=True)
        # The maximum is over all chunks, so the exponentials of every chunk have one
        # scale and can be added.
        scores -= highest
        np.exp(scores, out=scores)
        mixed = _sum_in_order(multiply(scores, values, self._value_block))
        mixed /= _sum_in_order(scores.sum(axis=-1, keepdims=True))
        return mixed


def _build_mask(keys: Ints, queries: Ints) -> Floats:
    """Build a mask: 0 for visible keys, -inf for later ones. keys, queries: positions,
    broadcast.
    """
    return np.where(np.greater(keys, queries), np.float32(-np.inf), np.float32(0))


def _sum_in_order(parts: Floats) -> Floats:
    """Sum over the chunks (axis -3) one after the other: np.sum's pairwise order
    depends on their number.
    """
    total = parts[..., 0, :, :]
    for chunk in range(1, parts.shape[-3]):
        total = total + parts[..., chunk, :, :]
    return total


# Weights and forward pass.


class TokenBatch(Struct, frozen=True):
    """The tokens of one step, one per row.

    slots: place of each token's keys and values in the cache, block * BLOCK_SIZE +
        offset.
    singles, spans: groups of rows; every row is in exactly one of them.
    """

    ids: Ints
    positions: Ints
    slots: Ints
    singles: tuple[SingleQueries, ...]
    spans: tuple[QuerySpan, ...]


class _Layer(Struct, frozen=True):
    """The matrices of a layer, with norms, the attention scale and the rope order
    folded in.
    """

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear


class Llama:
    """The weights of a Llama. `forward` may be called from one thread at a time."""

    def __init__(
        self, config: LlamaConfig, tensors: Tensors, block_sizes: BlockSizes | None = None
    ) -> None:
        """block_sizes: shared with another model of the same shapes. Raises
        EngineError, also for unused tensors.
        """
        self.config = config
        self._block_sizes = block_sizes = block_sizes or BlockSizes()
        self._tokens = tensors.take("model.embed_tokens.weight", config.vocab, config.hidden)
        self._layers = [
            _load_layer(config, tensors, block_sizes, f"model.layers.{index}.")
            for index in range(config.layers)
        ]
        self._norm = tensors.take("model.norm.weight", config.hidden)
        if config.is_tied:
            # A checkpoint may store the tied head too; `check_all_used` would reject
            # it.
            tensors.drop("lm_head.weight")
            head = self._tokens
        else:
            head = tensors.take("lm_head.weight", config.vocab, config.hidden)
        # The final norm's weights are folded into the head, which saves a pass over the
        # states.
        self._head = Linear((head * self._norm).T, block_sizes)
        self.attention = Attention(config, block_sizes)
        self._rope = Rope(config.rope, config.head_dim)
        tensors.check_all_used()

    def with_weights(self, tensors: Tensors) -> Llama:
        """Build the same model with other weights. Raises EngineError."""
        return Llama(self.config, tensors, self._block_sizes)

    def build_cache(self, blocks: int) -> Floats:
        """Build a zeroed cache [layers, blocks, BLOCK_SIZE * kv_width]; its pages use
        memory once written.
        """
        return np.zeros((self.config.layers, blocks, BLOCK_SIZE * self.config.kv_width), np.float32)

    def forward(self, batch: TokenBatch, cache: Floats) -> Floats:
        """Compute a batch and write its keys and values.

        Returns the last hidden states [rows, hidden], normalized without the norm's
        weight; rows padded to a multiple of ROWS.
        """
        padding = (0, round_up(len(batch.ids), ROWS) - len(batch.ids))
        rotations = self._rope.get_rotations(np.pad(batch.positions, padding))
        rows = self._tokens[np.pad(batch.ids, padding)]
        # The exponential of the gate may overflow: the quotient is then 0, its limit.
        with np.errstate(over="ignore"):
            for layer, kv in zip(self._layers, cache, strict=True):
                rows = rows + layer.out(
                    self._attend(layer.qkv(self._normalize(rows)), rotations, batch, kv)
                )
                # silu(gate) * up. Both are negated, so that e^gate is what the sigmoid
                # needs.
                gate, up = np.split(layer.gate_up(self._normalize(rows)), 2, axis=1)
                sigmoid = np.exp(gate)
                sigmoid += np.float32(1)
                product = gate * up
                product /= sigmoid
                rows = rows + layer.down(product)
        return self._normalize(rows)

    def compute_logits(self, states: Floats) -> Floats:
        """Compute logits [n, vocab] from states [n, hidden] of `forward`."""
        count = len(states)
        padded = np.zeros((round_up(count, ROWS), self.config.hidden), np.float32)
        padded[:count] = states
        return self._head(padded)[:count]

    def apply_final_norm(self, states: Floats) -> Floats:
        """Apply the norm's weight to states of `forward`: the last hidden states as in
        transformers.
        """
        return states * self._norm

    def _normalize(self, rows: Floats) -> Floats:
        """Compute RMSNorm without its weight. np.vecdot sums each row independently of
        the others.
        """
        squares = np.vecdot(rows, rows)
        squares /= np.float32(self.config.hidden)
        squares += np.float32(self.config.eps)
        return rows / np.sqrt(squares)[:, None]

    def _attend(
        self, qkv: Floats, rotations: NDArray[np.complex64], batch: TokenBatch, kv: Floats
    ) -> Floats:
        config = self.config
        rotated = config.query_width + config.kv_width // 2
        # A rotation of pairs is a complex multiplication, so queries and keys are
        # rotated in one pass, in place.
        pairs = qkv[:, :rotated].reshape(len(qkv), -1, config.head_dim).view(np.complex64)
        pairs *= rotations
        qk = pairs.view(np.float32).reshape(len(qkv), -1)
        slots = kv.reshape(-1, config.kv_width)
        slots[batch.slots, : config.kv_width // 2] = qk[: len(batch.ids), config.query_width :]
        slots[batch.slots, config.kv_width // 2 :] = qkv[: len(batch.ids), rotated:]
        mixed = np.zeros((len(qkv), config.query_width), np.float32)
        queries = qk[:, : config.query_width]
        for single in batch.singles:
            rows = slice(single.start, single.stop)
            mixed[rows] = self.attention.attend_single(queries[rows], single, kv)
        for span in batch.spans:
            rows = slice(span.start, span.stop)
            mixed[rows] = self.attention.attend_span(queries[rows], span, kv)
        return mixed


def read_model(directory: Path) -> Llama:
    """Read a Llama from a directory of config.json and *.safetensors. Raises
    EngineError.
    """
    return Llama(read_config(directory / "config.json"), Tensors(directory))


def _load_layer(
    config: LlamaConfig, tensors: Tensors, block_sizes: BlockSizes, prefix: str
) -> _Layer:
    hidden = config.hidden
    width = config.kv_heads * config.head_dim
    attention_norm = tensors.take(prefix + "input_layernorm.weight", hidden)
    mlp_norm = tensors.take(prefix + "post_attention_layernorm.weight", hidden)
    query = tensors.take(prefix + "self_attn.q_proj.weight", config.query_width, hidden)
    key = tensors.take(prefix + "self_attn.k_proj.weight", width, hidden)
    value = tensors.take(prefix + "self_attn.v_proj.weight", width, hidden)
    gate = tensors.take(prefix + "mlp.gate_proj.weight", config.intermediate, hidden)
    up = tensors.take(prefix + "mlp.up_proj.weight", config.intermediate, hidden)
    scale = np.float32(config.head_dim**-0.5)
    qkv = np.concatenate(
        (
            _interleave_heads(query, config.head_dim) * scale,
            _interleave_heads(key, config.head_dim),
            value,
        )
    )
    return _Layer(
        qkv=Linear((qkv * attention_norm).T, block_sizes),
        out=Linear(
            tensors.take(prefix + "self_attn.o_proj.weight", hidden, config.query_width).T,
            block_sizes,
        ),
        # Negated: e^gate' is then what the sigmoid needs, and the two signs cancel.
        gate_up=Linear((-np.concatenate((gate, up)) * mlp_norm).T, block_sizes),
        down=Linear(
            tensors.take(prefix + "mlp.down_proj.weight", hidden, config.intermediate).T,
            block_sizes,
        ),
    )


def _interleave_heads(weight: Floats, head_dim: int) -> Floats:
    """Reorder the rows of each head by `compute_interleaved_order`."""
    return weight.reshape(-1, head_dim, weight.shape[1])[
        :, compute_interleaved_order(head_dim)
    ].reshape(weight.shape)
