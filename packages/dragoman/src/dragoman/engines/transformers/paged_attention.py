"""Paged attention for any model of the transformers library with replaceable attention.

The rows of a step are the tokens of all its chunks, concatenated without padding. The
model computes the token-wise layers; here every token attends to the keys and values of
its own sequence. The attention is registered with the library under NAME
(https://huggingface.co/docs/transformers/attention_interface). The module also handles
limits that change a model's computation at some position, such as longrope's window.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, cast

from msgspec import Struct

from ...core.errors import EngineError
from ..batching import BLOCK_SIZE, Chunk
from ..batching.limit_reduction import Limits, find_limits, reduce_attributes
from .backend import Device, Network, Tensor, library, torch
from .kv_pool import KvPool
from .long_rope import find_rope_parameters

NAME = "dragoman_paged"
MASKED_NAME = "dragoman_paged_masked"
"""The same attention with the library's masks, for layers whose mask is more than
causal with a sliding window.
"""
_ROPE_WINDOW = "original_max_position_embeddings"
_REDUCED_ROPE_WINDOW = 40
_LONG_FREQUENCIES = "long_inv_freq"
"""Suffix of the attributes in which the library's RoPE modules cache what they computed
from the window.
"""

_PIECE_PAIRS = 1 << 22
"""Pairs of a query and a key, over all heads, whose scores are in memory at once: 16 MiB
in float32, a few times.
"""
_UNUSED_KEYWORDS = frozenset(
    {
        # The arguments of `forward`, which some models pass on.
        *("position_ids", "use_cache", "cache_position", "logits_to_keep", "num_items_in_batch"),
        # Requests for further outputs.
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        # Random only in training.
        "dropout",
    }
)
"""Keywords of the library's attention that do not change its output in inference."""

KernelContext: TypeAlias = Callable[[], AbstractContextManager[None]]
"""A context manager that restricts attention to the selected kernels."""


class AttentionGroup:
    """Rows of a step that attend in one call: one token each of several sequences, or
    several tokens of one.

    rows: their slice of the step.
    blocks: [sequences, blocks], block numbers in the pool.
    positions: [sequences, queries]; key k of a sequence has position k.
    """

    def __init__(self, rows: slice, blocks: Tensor, positions: Tensor) -> None:
        self.rows = rows
        self._blocks = blocks
        self._positions = positions
        self._masks: dict[tuple[int | None, LibraryMask | None], Tensor] = {}

    @property
    def num_sequences(self) -> int:
        return len(self._blocks)

    def gather(self, part: Tensor) -> Tensor:
        """Gather the sequences' keys or values from a layer's: [sequences, heads, keys,
        width].

        part: [slots, heads, width].
        """
        # Whole blocks are copied several times as fast as single slots.
        gathered = part.view(-1, BLOCK_SIZE * part[0].numel()).index_select(
            0, self._blocks.flatten()
        )
        return gathered.view(self.num_sequences, -1, *part.shape[1:]).transpose(1, 2)

    def get_mask(self, window: int | None, library_mask: LibraryMask | None = None) -> Tensor:
        """Return the mask [sequences, 1, queries, keys], True where a query sees a key.

        All layers with this window and library mask share it.
        """
        key = (window, library_mask)
        if key not in self._masks:
            keys = torch.arange(self._blocks.shape[1] * BLOCK_SIZE, device=self._blocks.device)
            queries = self._positions[:, :, None]
            visible = keys <= queries
            if window is not None:
                visible &= keys > queries - window
            if library_mask is not None:
                visible &= library_mask.compute(queries, keys[None, None])
            self._masks[key] = visible[:, None]
        return self._masks[key]


class LibraryMask:
    """The arguments from which the library would build a layer's mask.

    mask_function: the library's mask function, called with positions of one sequence;
        True where a query sees a key.
    """

    def __init__(self, *, mask_function: Callable[..., Tensor], **_: object) -> None:
        self._mask_function = mask_function

    def compute(self, queries: Tensor, keys: Tensor) -> Tensor:
        sequence = head = torch.zeros((), dtype=torch.long, device=queries.device)
        return self._mask_function(sequence, head, queries, keys)


class StepLayout(Struct, frozen=True):
    """How a step is arranged for the kernels of a device. No answer depends on it.

    sorts_chunks: sort the chunks of one token by length. They then form few groups, each
        of which costs a GPU some launches in every layer: 128 streams of mixed lengths
        form 6 groups, and 73 in the order of their arrival. On a CPU it does not pay.
    expands_heads: repeat the keys and values of grouped heads. On CUDA, the kernel that
        takes a mask (`efficient`) takes no grouped heads; torch's choice would be the
        math kernel, whose float32 scores take gigabytes.
    """

    sorts_chunks: bool = False
    expands_heads: bool = False

    def order(self, chunks: Sequence[Chunk]) -> list[int]:
        """Return the indices of the chunks in the order of their rows."""
        if not self.sorts_chunks:
            return list(range(len(chunks)))
        return sorted(
            range(len(chunks)),
            key=lambda index: chunks[index].end if chunks[index].num_tokens == 1 else 0,
        )


def choose_layout(device: Device) -> StepLayout:
    is_cuda = device.type == "cuda"
    return StepLayout(sorts_chunks=is_cuda, expands_heads=is_cuda)


class PagedStep:
    """The tokens of one step, in the order of their chunks.

    slots: where each token's keys and values go.
    expands_heads: see `StepLayout`.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        pool: KvPool,
        device: Device,
        *,
        expands_heads: bool = False,
    ) -> None:
        self.pool = pool
        self.expands_heads = expands_heads
        tokens = [
            (chunk.sequence, position)
            for chunk in chunks
            for position in range(chunk.begin, chunk.end)
        ]
        self.ids = torch.tensor(
            [[sequence.tokens[position] for sequence, position in tokens]], device=device
        )
        self.positions = torch.tensor([[position for _, position in tokens]], device=device)
        self.slots = torch.tensor(
            [sequence.find_slot(position) for sequence, position in tokens], device=device
        )
        self.groups = _build_groups(chunks, device)
        self._num_layers = 0

    def count_layer(self) -> int:
        """Return the number of the layer that attends, in the order of calls: layers
        may share a module (Zamba).
        """
        self._num_layers += 1
        return self._num_layers - 1


def _build_groups(chunks: Sequence[Chunk], device: Device) -> list[AttentionGroup]:
    """Group the chunks. Consecutive single-token chunks form one group while their
    lengths differ by at most a factor of about 2.
    """
    groups: list[AttentionGroup] = []
    start = index = 0
    while index < len(chunks):
        members = [chunks[index]]
        if members[0].num_tokens == 1:
            shortest = longest = members[0].end
            for chunk in chunks[index + 1 :]:
                shortest = min(shortest, chunk.end)
                longest = max(longest, chunk.end)
                # All sequences of a group are padded to the longest: this bounds the
                # share of padding to about half.
                if chunk.num_tokens > 1 or longest > 2 * shortest + BLOCK_SIZE:
                    break
                members.append(chunk)
        rows = slice(start, start + sum(chunk.num_tokens for chunk in members))
        width = -(-max(chunk.end for chunk in members) // BLOCK_SIZE)
        # Block 0 is never allocated: padding of the table points to it and is masked.
        tables = [(chunk.sequence.blocks + [0] * width)[:width] for chunk in members]
        positions = torch.tensor(
            [list(range(chunk.begin, chunk.end)) for chunk in members], device=device
        )
        groups.append(AttentionGroup(rows, torch.tensor(tables, device=device), positions))
        index += len(members)
        start = rows.stop
    return groups


def attend(
    module: Network,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: LibraryMask | Tensor | None,
    *,
    step: PagedStep | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attend in one layer, with the library's signature.

    query, key, value: [1, heads, tokens, width]; returns [1, tokens, heads, width].
    sliding_window, softcap, s_aux (sinks): features of some models, named as in the
    library.
    others: further keywords. Each is a feature that some model passes, such as
        `block_indices` of MiniMax M3; one that is not supported is an error.
    """
    for name, feature in others.items():
        if feature is not None and name not in _UNUSED_KEYWORDS:
            raise EngineError(f"this model's attention uses `{name}`, which is not supported")
    if is_causal is False:
        raise EngineError("this model's attention is not causal")
    # Without these checks, a model that builds its own mask would silently compute
    # wrong logits.
    if step is None or not isinstance(attention_mask, LibraryMask | None):
        raise EngineError("this model's attention uses its own mask or drops ours")
    if getattr(module.config, "attn_temperature_tuning", False) and not getattr(
        module, "use_rope", True
    ):
        # Llama 4's temperature of long contexts (https://arxiv.org/abs/2501.19399) in
        # its layers without RoPE.
        scales = (
            torch.log1p(torch.floor((step.positions[0] + 1.0) / module.floor_scale))
            * module.attn_scale
            + 1.0
        )
        query = (query * scales[:, None]).to(query.dtype)
    keys, values = step.pool.get_layer(
        step.count_layer(), key[0].transpose(0, 1), value[0].transpose(0, 1)
    )
    # Stored before attention, because the tokens of a chunk also attend to one another.
    keys[step.slots] = key[0].transpose(0, 1)
    values[step.slots] = value[0].transpose(0, 1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mixed = query.new_empty((query.shape[2], query.shape[1], value.shape[-1]))
    for group in step.groups:
        group_query = query[0, :, group.rows].transpose(0, 1)
        group_query = group_query.reshape(group.num_sequences, -1, *query.shape[1::2]).transpose(
            1, 2
        )
        group_keys = group.gather(keys)
        group_values = group.gather(values)
        mask = group.get_mask(sliding_window, attention_mask)
        if softcap is None and s_aux is None:
            attended = _attend_fused(
                group_query, group_keys, group_values, mask, scale, step.expands_heads
            )
        else:
            attended = _attend_unfused(
                group_query, group_keys, group_values, mask, scale, softcap, s_aux
            )
        mixed[group.rows] = attended.transpose(1, 2).reshape(-1, *mixed.shape[1:])
    return mixed[None], None


def select_kernels(backend: str) -> KernelContext:
    """Return a context that restricts attention to one of torch's kernels; `auto` is
    torch's choice for each step.

    Softcapping and sinks use no fused kernel, see `_attend_unfused`.
    """
    if backend == "auto":
        return nullcontext
    backend_names = {
        "flash": "FLASH_ATTENTION",
        "efficient": "EFFICIENT_ATTENTION",
        "cudnn": "CUDNN_ATTENTION",
        "math": "MATH",
    }
    choice: Any = import_module("torch.nn.attention")
    return partial(choice.sdpa_kernel, getattr(choice.SDPBackend, backend_names[backend]))


def _attend_fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, expands_heads: bool
) -> Tensor:
    """Compute attention with torch's kernels. Shapes as in `_attend_unfused`."""
    attention = torch.nn.functional.scaled_dot_product_attention
    if query.shape[2] > 1:
        group_size = query.shape[1] // key.shape[1]
        if expands_heads and group_size > 1:
            key, value = (part.repeat_interleave(group_size, dim=1) for part in (key, value))
        use_gqa = query.shape[1] != key.shape[1]
        return attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=use_gqa)
    # Single tokens have one mask, so heads that share keys can be rows of one head: a
    # kernel then reads the keys once.
    rows = query.view(len(query), key.shape[1], -1, query.shape[3])
    attended = attention(rows, key, value, attn_mask=mask, scale=scale)
    return attended.reshape(*query.shape[:3], -1)


def _attend_unfused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Compute attention with features that the fused kernels lack: tanh softcapping of
    scores, sinks in the softmax. The scores are computed in pieces of a fixed size:
    those of one long prompt with 64 heads would take gigabytes.

    query: [sequences, heads, queries, width]; key, value: [sequences, key heads, keys,
        width].
    """
    # One sequence with several queries, or one query of each sequence, see
    # `AttentionGroup`.
    dimension = 2 if len(query) == 1 else 0
    pairs_per_row = query.shape[1] * key.shape[2]
    rows_per_piece = max(_PIECE_PAIRS // pairs_per_row, 1)
    mixed = query.new_empty((*query.shape[:3], value.shape[3]))
    for begin in range(0, query.shape[dimension], rows_per_piece):
        count = min(rows_per_piece, query.shape[dimension] - begin)
        piece, piece_mask = (part.narrow(dimension, begin, count) for part in (query, mask))
        if dimension == 0:
            piece_key, piece_value = (part.narrow(0, begin, count) for part in (key, value))
        else:
            piece_key, piece_value = key, value
        mixed.narrow(dimension, begin, count).copy_(
            _attend_piece(piece, piece_key, piece_value, piece_mask, scale, softcap, sinks)
        )
    return mixed


def _attend_piece(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Compute the scores of all rows at once. Arguments as in `_attend_unfused`."""
    num_sequences, heads, queries, _ = query.shape
    # Heads that share keys are rows of one head, so that keys and values are not
    # copied.
    rows = query.reshape(num_sequences, key.shape[1], -1, query.shape[3])
    scores = (rows @ key.transpose(2, 3) * scale).view(num_sequences, heads, queries, -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, float("-inf")).float()
    if sinks is not None:
        column = sinks.float().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        # A sink is a column of the softmax without a value: it takes weight from the
        # keys, as in gpt-oss.
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]].to(value.dtype)
    mixed = weights.reshape(num_sequences, key.shape[1], -1, key.shape[2]) @ value
    return mixed.view(num_sequences, heads, queries, -1)


def set_attention(network: Network, name: str) -> None:
    """Switch the text part to an attention implementation: NAME, MASKED_NAME, or one of
    the library's own.
    """
    config = network.config
    text = network.config.get_text_config()
    # None if all of the model is text.
    part = next((part for part in config.sub_configs if getattr(config, part, None) is text), None)
    network.set_attn_implementation(name if part is None else {part: name})
    for module in network.modules():
        # The library would compute Llama 4's scale of queries from rows of the step;
        # `attend` uses positions instead.
        if hasattr(module, "attn_temperature_tuning") and hasattr(module, "floor_scale"):
            module.attn_temperature_tuning = module.config.attn_temperature_tuning and name not in (
                NAME,
                MASKED_NAME,
            )


def get_attention(network: Network) -> str:
    """Return the name of the text part's attention implementation."""
    return network.config.get_text_config()._attn_implementation


def register() -> None:
    """Register both names with the library, which then builds no masks for NAME.
    Idempotent.
    """
    library.AttentionInterface.register(NAME, attend)
    library.AttentionInterface.register(MASKED_NAME, attend)
    library.AttentionMaskInterface.register(MASKED_NAME, LibraryMask)


def find_network_limits(network: Network) -> Limits:
    """Find the limits in a network's configurations and modules, see `find_limits`."""
    return find_limits(_list_holders(network))


def _list_holders(network: Network) -> list[Any]:
    """List the configurations and modules of a network."""
    modules = list(network.modules())
    configs = [module.config for module in modules if getattr(module, "config", None) is not None]
    return [network.config, network.config.get_text_config(), *modules, *configs]


@contextmanager
def reduce_limits(network: Network, limits: Limits) -> Generator[None]:
    """Reduce the limits at which a network's computation changes (windows, chunks,
    scales) until the end of the block, so that the few tokens of a check exceed them.

    limits: those of `find_network_limits` that can be reduced. Windows of RoPE are
        always reduced.
    """
    windows = [
        (parameters, parameters[_ROPE_WINDOW])
        for holder in _list_holders(network)
        for parameters in find_rope_parameters(holder)
        if parameters.get(_ROPE_WINDOW, 0) > _REDUCED_ROPE_WINDOW
    ]
    for parameters, _ in windows:
        parameters[_ROPE_WINDOW] = _REDUCED_ROPE_WINDOW
    _forget_long_frequencies(network)
    try:
        with reduce_attributes(limits):
            yield
    finally:
        for parameters, window in windows:
            parameters[_ROPE_WINDOW] = window
        _forget_long_frequencies(network)


def _forget_long_frequencies(network: Network) -> None:
    for module in network.modules():
        names = [str(name) for name in cast("dict[str, Any]", vars(module))]
        for name in (name for name in names if name.endswith(_LONG_FREQUENCIES)):
            delattr(module, name)
