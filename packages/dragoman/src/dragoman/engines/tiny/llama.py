"""A Llama in numpy: its weights, the forward pass.

A row of the result is bitwise independent of other sequences in the batch and of how a
prompt was chunked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..batch_invariant_matmul import ROWS, BlockSizes, Linear, round_up, share_block_sizes
from ..batching import BLOCK_SIZE
from ..safetensors_reader import Tensors
from .array_types import Floats, Ints
from .llama_config import LlamaConfig, read_config
from .paged_attention import Attention, QuerySpan, SingleQueries
from .rope import Rope, compute_interleaved_order


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

    def __init__(self, config: LlamaConfig, tensors: Tensors) -> None:
        """Raises EngineError, also for unused tensors."""
        self.config = config
        block_sizes = share_block_sizes()
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
        return Llama(self.config, tensors)

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
