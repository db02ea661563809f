"""A causal language model of the transformers library as a batching model: loading,
steps and weight updates.

Only safetensors are read, nothing is downloaded, and a model's own code runs only if
enabled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.errors import EngineError, Unsupported
from ..arrays import Tensors
from ..batching import BLOCK_SIZE, Chunk, NumpySampledRows, SampledRows, SamplingState
from ..batching.verify import find_reason
from .backend import Device, Network, Tensor, library, torch
from .device_sampler import DeviceSampledRows
from .lora import LoraLayers
from .packed_linears import PackedLinears, build_quantization_args, is_quantized
from .paged_attention import (
    KernelContext,
    KvPool,
    LongRope,
    MASKED_NAME,
    NAME,
    PagedStep,
    get_attention,
    select_kernels,
)
from .recurrent import RecurrentLayers, StatePool
from .vision import TransformersVisionRunner, is_vision_model

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]

UNLIMITED_POSITIONS = 1 << 20
"""Context length of a recurrent model whose configuration has none: the computation
itself has no limit.
"""


class TransformersOptions(Struct, frozen=True):
    """Options of a transformers model.

    dtype: `auto` is the checkpoint's; float32 on a CPU without bfloat16.
    device: `auto` is an accelerator if there is one.
    trust_remote_code: whether to run Python code from the model's directory.
    quantization: method to quantize weights while loading, see
        `packed_linears.build_quantization_args`.
    attention_backend: see `paged_attention.select_kernels`.
    threads: number of CPU threads; None is all cores that the process may use.
    sampling_device: `host`, `model` (its device), or `auto`: the model's device if that
        is an accelerator.
    """

    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    quantization: str | None = None
    attention_backend: str = "auto"
    threads: int | None = None
    sampling_device: str = "auto"


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
        staged = stage_weights(self._weight_slots, tensors)
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
        *,
        samples_on_device: bool = False,
    ) -> None:
        self._network = network
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
        starts = [0]
        for chunk in chunks:
            start = starts[-1]
            end = starts[-1] + chunk.num_tokens
            needed_rows.update(
                range(start if chunk.sequence.prompt_logprobs is not None else end - 1, end)
            )
            starts.append(end)
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
            step = PagedStep(chunks, self.pool, self._network.device)
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
        return LogitRows(logits, row_index, starts, samples_on_device=self._samples_on_device)

    def save(self, block: int) -> bytes:
        return self.pool.save(block)

    def restore(self, block: int, contents: bytes) -> None:
        self.pool.restore(block, contents)


class LogitRows:
    """Implements `batching.StepStates` for the needed rows only.

    row_index: index in `logits`, by row of the step.
    starts: first row of each chunk, and the end of the last chunk.
    """

    def __init__(
        self,
        logits: Tensor,
        row_index: dict[int, int],
        starts: list[int],
        *,
        samples_on_device: bool,
    ) -> None:
        self._logits = logits
        self._row_index = row_index
        self._starts = starts
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
        start = self._starts[index]
        return _copy_to_host(self._select(range(start + begin, start + end)))

    def _select_last(self, indices: Sequence[int]) -> Tensor:
        return self._select([self._starts[index + 1] - 1 for index in indices])

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


def load_network(directory: Path, options: TransformersOptions) -> Network:
    """Load a model in evaluation mode on its device. Raises EngineError for an
    unsupported model.
    """
    library.utils.logging.disable_progress_bar()
    if not list(directory.glob("*.safetensors")):
        raise EngineError(
            f"{directory} contains no safetensors file; other formats are not supported, because "
            f"they may run code"
        )
    device = options.device
    if device == "auto":
        is_mps = torch.backends.mps.is_available()
        device = "cuda" if torch.cuda.is_available() else "mps" if is_mps else "cpu"
    else:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, ValueError) as error:
            raise EngineError(
                f"the device {device!r} cannot be used: {str(error).splitlines()[0]}"
            ) from None
    local: dict[str, Any] = {
        "local_files_only": True,
        "trust_remote_code": options.trust_remote_code,
    }
    try:
        config = library.AutoConfig.from_pretrained(directory, **local)
        quantization_args = build_quantization_args(
            config, options.quantization, options.dtype, device
        )
        auto_class = (
            library.AutoModelForImageTextToText
            if is_vision_model(config)
            else library.AutoModelForCausalLM
        )
        arguments = {
            "config": config,
            "dtype": options.dtype,
            "use_safetensors": True,
            "output_loading_info": True,
            # `_check_tensors` reports them by name.
            "ignore_mismatched_sizes": True,
            **quantization_args,
            **local,
        }
        try:
            network, loading_info = auto_class.from_pretrained(
                directory, attn_implementation="sdpa", **arguments
            )
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            # SDPA lacks features of some models, such as sinks; paged attention has its
            # own code for them.
            network, loading_info = auto_class.from_pretrained(
                directory, attn_implementation="eager", **arguments
            )
    except EngineError:
        raise
    except Exception as error:  # the library's code may raise any exception
        raise EngineError(f"transformers cannot load {directory}: {find_reason(error)}") from error
    _check_tensors(directory, network, loading_info)
    # A quantized network cannot be moved; it was loaded onto its device.
    return network.eval() if quantization_args else network.to(device).eval()


def _check_tensors(directory: Path, network: Network, info: Mapping[str, Collection[Any]]) -> None:
    """Raise EngineError if the checkpoint lacks tensors of the network, which the
    library fills with random numbers.

    info: the library's loading info.
    """
    kind = type(network).__name__
    next_step = "download the model again, or use the config.json that belongs to it"
    for name, found, expected in sorted(info["mismatched_keys"]):
        raise EngineError(
            f"{directory}: {name} has shape {tuple(found)}, but config.json says "
            f"{tuple(expected)}; {next_step}"
        )
    if missing := sorted(info["missing_keys"]):
        raise EngineError(
            f"{directory} lacks {len(missing)} tensors of {kind}, such as {missing[0]}; {next_step}"
        )
    if unused := sorted(info["unexpected_keys"]):
        log.warning(
            "%s: %s does not use %d of the tensors, such as %s",
            directory,
            kind,
            len(unused),
            unused[0],
        )


# Weight updates: the tensors of a loaded network, by their names in checkpoints.


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
            raise EngineError(f"{' and '.join(names)} are one tensor in this model, but differ")
        staged.append((slot, first.to(slot.dtype)))
    tensors.check_all_used()
    return staged


def release_cached_memory(device: Device) -> None:
    """Return the allocator's cached memory to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
