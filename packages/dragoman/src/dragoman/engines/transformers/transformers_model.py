"""A causal language model of the transformers library as a batching model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.errors import EngineError, Unsupported
from ..batching import BLOCK_SIZE, Chunk, NumpySampledRows, SampledRows, SamplingState
from ..batching.paging_self_check import find_reason
from ..safetensors_reader import Tensors
from .backend import Device, Network, Tensor, torch
from .device_sampler import DeviceSampledRows
from .kv_pool import KvPool
from .long_rope import LongRope
from .lora import LoraLayers
from .packed_linears import PackedLinears, is_quantized
from .paged_attention import (
    MASKED_NAME,
    NAME,
    KernelContext,
    PagedStep,
    StepLayout,
    choose_layout,
    get_attention,
    select_kernels,
)
from .recurrent import RecurrentLayers, StatePool
from .vision_encoder import TransformersVisionRunner

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]

UNLIMITED_POSITIONS = 1 << 20
"""Context length of a recurrent model whose configuration has none: the computation
itself has no limit.
"""


class TransformersModel:
    """Implements `batching.Model`. It has the weights; each runner has its own KV
    cache.

    own_attention: name of the library's attention with which the network was loaded.
    paged_attention: name of the attention that replaces it, NAME or MASKED_NAME.
    vision_runner: None for a model without images; set for the vision check.
    bytes_per_slot: bytes of a sequence's recurrent state; set by the check of paged
        attention.
    samples_on_device: whether runners built from now on sample on the model's device
        instead of the host.
    """

    def __init__(self, network: Network, attention_backend: str = "auto") -> None:
        self._network = network
        self._kernels = select_kernels(attention_backend)
        self.own_attention = get_attention(network)
        self.paged_attention = NAME
        self.layout = choose_layout(network.device)
        self.recurrent = RecurrentLayers(network)
        self.long_rope = LongRope(network)
        self.lora = LoraLayers(network, self.recurrent)
        self.linears = PackedLinears(network)
        self.vision_runner: TransformersVisionRunner | None = None
        self.bytes_per_slot = 0
        self.samples_on_device = False
        config = network.config.get_text_config()
        self._vocab: int = config.vocab_size
        names = ("max_position_embeddings", "max_seq_len", "max_sequence_length", "seq_length")
        limits = [limit for name in names if isinstance(limit := getattr(config, name, None), int)]
        if not limits and not self.recurrent.has_state:
            raise EngineError(
                f"{config.model_type} does not state a longest context (max_position_embeddings)"
            )
        if limits and limits[0] < 1:
            raise EngineError(f"{config.model_type} states a longest context of {limits[0]}")
        self._max_positions = limits[0] if limits else UNLIMITED_POSITIONS
        self._weight_slots = find_weight_slots(network)

    @property
    def vocab(self) -> int:
        return self._vocab

    @property
    def max_positions(self) -> int:
        return self._max_positions

    @property
    def rope_window(self) -> int | None:
        return self.long_rope.window

    @property
    def has_state(self) -> bool:
        return self.recurrent.has_state

    @property
    def device(self) -> str:
        return str(self._network.device)

    def prepare_weights(self, tensors: Tensors) -> Callable[[], None]:
        if is_quantized(self._network.config):
            raise Unsupported(
                "The weights of a quantized model cannot be replaced.", param="weights"
            )
        # All tensors are read and validated before any is replaced: a failure leaves
        # the old weights in use.
        if all(any(name in tensors for name in slot.names) for slot in self._weight_slots):
            staged = stage_weights(self._weight_slots, tensors)
        else:
            staged = stage_checkpoint(
                self._network, self._weight_slots, tensors, self.own_attention
            )
        setters = [
            self.linears.stage(slot.tensor, value.to(self._network.device))
            for slot, value in staged
        ]

        def apply() -> None:
            for set_weight in setters:
                set_weight()
            if self.vision_runner:
                self.vision_runner.clear_cache()

        return apply

    def prepare_discard(self) -> Callable[[], None]:
        def discard() -> None:
            for slot in self._weight_slots:
                self.linears.stage(slot.tensor, slot.tensor.data.new_empty(0))()
            if self.vision_runner:
                self.vision_runner.clear_cache()
            release_cached_memory(self._network.device)

        return discard

    def build_runner(self, num_blocks: int, num_state_slots: int = 0) -> TransformersRunner:
        pool = KvPool(num_blocks, self._network.device)
        states = StatePool(num_state_slots)
        rows = RowOptions(self.lora, self.long_rope, self.recurrent)
        return TransformersRunner(
            self._network,
            pool,
            states,
            self._kernels,
            rows,
            self.vision_runner,
            self.layout,
            samples_on_device=self.samples_on_device,
        )


class RowOptions(Struct, frozen=True, eq=False):
    """The parts of a network whose computation depends on the sequence of each row."""

    lora: LoraLayers
    long_rope: LongRope
    recurrent: RecurrentLayers


class TransformersRunner:
    """Implements `batching.Runner`."""

    def __init__(
        self,
        network: Network,
        pool: KvPool,
        states: StatePool,
        kernels: KernelContext,
        options: RowOptions,
        vision_runner: TransformersVisionRunner | None = None,
        layout: StepLayout = StepLayout(),  # noqa: B008 - immutable
        *,
        samples_on_device: bool = False,
    ) -> None:
        self._network = network
        self._layout = layout
        self.pool = pool
        self.states = states
        self._kernels = kernels
        self._options = options
        self._vision_runner = vision_runner
        self._samples_on_device = samples_on_device

    def close(self) -> None:
        self.pool = KvPool(0, self._network.device)
        self.states = StatePool(0)
        release_cached_memory(self._network.device)

    def forward(self, chunks: Sequence[Chunk]) -> LogitRows:
        # Logits are needed for the last row of each chunk, and for all rows of prompts
        # with logprobs.
        needed_rows: set[int] = set()
        order = self._layout.order(chunks)
        spans = [(0, 0)] * len(chunks)
        start = 0
        for index in order:
            chunk = chunks[index]
            end = start + chunk.num_tokens
            needed_rows.update(
                range(start if chunk.sequence.prompt_logprobs is not None else end - 1, end)
            )
            spans[index] = (start, end)
            start = end
        chunks = [chunks[index] for index in order]
        rows = sorted(needed_rows)
        # Blocks that begin in this chunk; earlier ones hold keys and values that are
        # needed.
        new_blocks = [
            block
            for chunk in chunks
            for block in chunk.sequence.blocks[-(-chunk.begin // BLOCK_SIZE) :]
        ]
        with torch.inference_mode(), self._kernels():
            self.pool.zero_blocks(new_blocks)
            self._options.lora.activate(chunks)
            self._options.long_rope.activate(chunks)
            step = PagedStep(
                chunks,
                self.pool,
                self._network.device,
                expands_heads=self._layout.expands_heads,
            )
            with self._options.recurrent.activate(chunks, self.states):
                inputs: dict[str, Tensor] = {}
                if get_attention(self._network) == MASKED_NAME:
                    # Without a mask the library takes decreasing positions for packed
                    # sequences, and masks rows.
                    inputs["attention_mask"] = torch.ones_like(step.ids)
                if self._vision_runner is None:
                    inputs |= {"input_ids": step.ids, "position_ids": step.positions}
                else:
                    inputs["inputs_embeds"] = self._vision_runner.build_embeddings(step.ids, chunks)
                    inputs["position_ids"] = self._vision_runner.build_positions(
                        chunks, step.positions
                    )
                logits = self._network(
                    **inputs,
                    use_cache=False,
                    logits_to_keep=torch.tensor(rows, device=self._network.device),
                    step=step,
                ).logits[0]
        row_index = {row: index for index, row in enumerate(rows)}
        return LogitRows(logits, row_index, spans, samples_on_device=self._samples_on_device)

    def save(self, block: int) -> bytes:
        return self.pool.save(block)

    def restore(self, block: int, contents: bytes) -> None:
        self.pool.restore(block, contents)


class LogitRows:
    """Implements `batching.StepStates` for the needed rows only.

    row_index: index in `logits`, by row of the step.
    spans: the first row of each chunk, and the one after its last.
    """

    def __init__(
        self,
        logits: Tensor,
        row_index: dict[int, int],
        spans: list[tuple[int, int]],
        *,
        samples_on_device: bool,
    ) -> None:
        self._logits = logits
        self._row_index = row_index
        self._spans = spans
        self._samples_on_device = samples_on_device

    def compute_last_logits(self, indices: Sequence[int]) -> Floats:
        return _copy_to_host(self._select_last(indices))

    def sample(
        self, indices: Sequence[int], states: Sequence[SamplingState], masks: Sequence[bytes | None]
    ) -> SampledRows:
        if self._samples_on_device:
            return DeviceSampledRows(self._select_last(indices), states, masks)
        return NumpySampledRows(self.compute_last_logits(indices), states, masks)

    def compute_span_logits(self, index: int, begin: int, end: int) -> Floats:
        start, _ = self._spans[index]
        return _copy_to_host(self._select(range(start + begin, start + end)))

    def _select_last(self, indices: Sequence[int]) -> Tensor:
        return self._select([self._spans[index][1] - 1 for index in indices])

    def _select(self, rows: Sequence[int]) -> Tensor:
        """Select rows, [rows, vocab]; returns the step's own tensor if these are all of
        its rows.
        """
        selected = [self._row_index[row] for row in rows]
        # Indexing copies the rows: megabytes in each step for a large vocabulary.
        return (
            self._logits if selected == list(range(len(self._logits))) else self._logits[selected]
        )


def _copy_to_host(logits: Tensor) -> Floats:
    return logits.float().cpu().numpy().copy()


class WeightSlot(Struct, frozen=True):
    """A tensor of the network.

    names: its names in checkpoints; several if it is tied.
    shape, dtype: those at load time, since discarded weights have none.
    """

    names: tuple[str, ...]
    tensor: Tensor
    shape: tuple[int, ...]
    dtype: object


def find_weight_slots(network: Network) -> tuple[WeightSlot, ...]:
    """Find all parameters, and the buffers that checkpoints contain."""
    names_by_tensor: dict[int, tuple[list[str], Tensor]] = {}
    persistent = network.state_dict().keys()
    named_tensors = [
        *network.named_parameters(remove_duplicate=False),
        *network.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named_tensors:
        if name in persistent:
            names_by_tensor.setdefault(id(tensor), ([], tensor))[0].append(name)
    return tuple(
        WeightSlot(tuple(names), value, tuple(value.shape), value.dtype)
        for names, value in names_by_tensor.values()
    )


def stage_weights(slots: Sequence[WeightSlot], tensors: Tensors) -> list[tuple[WeightSlot, Tensor]]:
    """Read and validate all tensors, and convert them to the network's dtypes. Raises
    EngineError.
    """
    staged: list[tuple[WeightSlot, Tensor]] = []
    for slot in slots:
        names = [name for name in slot.names if name in tensors] or [slot.names[0]]
        first, *others = [
            torch.from_numpy(tensors.take(name, *slot.shape).copy()) for name in names
        ]
        if not all(torch.equal(first, other) for other in others):
            raise _build_tie_error(names)
        staged.append((slot, first.to(slot.dtype)))
    tensors.check_all_used()
    return staged


_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def stage_checkpoint(
    network: Network, slots: Sequence[WeightSlot], tensors: Tensors, attention: str
) -> list[tuple[WeightSlot, Tensor]]:
    """Read tensors by the names of a saved checkpoint, which differ from the network's:
    experts one by one instead of fused, other prefixes of an image-text model. The
    library converts them, as at startup. Raises EngineError.

    attention: name of one of the library's attentions.
    """
    state = {
        name: torch.from_numpy(tensors.take(name, *shape).copy()).to(_DTYPES[dtype])
        for name, (dtype, shape) in tensors.layout.items()
    }
    try:
        kind = cast("Any", type(network))
        loaded, info = kind.from_pretrained(
            None,
            config=deepcopy(network.config),
            state_dict=state,
            dtype=network.dtype,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # the library's code may raise any exception
        raise EngineError(f"transformers cannot load the weights: {find_reason(error)}") from error
    for name, found, expected in sorted(info["mismatched_keys"]):
        raise EngineError(f"{name} has shape {tuple(found)}, not {tuple(expected)}")
    if missing := sorted(info["missing_keys"]):
        raise EngineError(f"the weights contain no tensor {missing[0]}")
    if unexpected := sorted(info["unexpected_keys"]):
        raise EngineError(f"the weights contain unexpected tensors: {unexpected[:4]}")
    converted = loaded.state_dict()
    staged: list[tuple[WeightSlot, Tensor]] = []
    for slot in slots:
        parts: list[Tensor] = [converted[name] for name in slot.names]
        first, *others = parts
        if not all(torch.equal(first, other) for other in others):
            raise _build_tie_error(slot.names)
        staged.append((slot, first.to(slot.dtype)))
    return staged


def _build_tie_error(names: Sequence[str]) -> EngineError:
    return EngineError(f"{' and '.join(names)} are one tensor in this model, but differ")


def release_cached_memory(device: Device) -> None:
    """Return the allocator's cached memory to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
