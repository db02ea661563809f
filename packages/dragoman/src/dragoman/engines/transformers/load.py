"""Loads a model of the transformers library into a batching engine, if it passes the
self-checks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ...core.errors import EngineError
from ..batching import (
    AdapterRegistry,
    BatchingEngine,
    BlockFiles,
    EngineConfig,
    EngineLimits,
    build_rng,
)
from ..batching.engine_config import DEFAULT_MAX_NUM_SEQS
from ..batching.limit_reduction import Limits, compute_reducible
from ..batching.paging_self_check import build_trial_prompts, check_paging, find_reason
from ..failure_message import describe_error
from ..hardware import MAX_TORCH_KV_BYTES, compute_kv_budget, count_usable_cores
from .backend import Network, torch
from .device_sampler_check import can_sample_on_device
from .largest_step import measure_largest_step
from .load_network import TransformersOptions, load_network
from .paged_attention import (
    MASKED_NAME,
    NAME,
    find_network_limits,
    reduce_limits,
    register,
    set_attention,
)
from .recurrent import CACHE_NAMES
from .transformers_model import Floats, TransformersModel, TransformersRunner
from .vision import (
    TransformersVision,
    is_vision_model,
    load_processor,
)
from .vision_check import check_vision
from .vision_encoder import TransformersVisionRunner

log = logging.getLogger(__name__)

_KV_MEMORY_SHARE = 0.9
"""Share of an accelerator's memory that is free beside the weights and the largest step,
for the KV cache and state slots. The rest is for fragmentation, and for what other
libraries allocate.
"""
_MAX_BATCHED_TOKENS = 2048
_MAX_STEP_PAIRS = 1 << 24
_TOKENS_WITHOUT_KEYS = 1 << 22
"""Capacity in tokens of a KV cache that takes no memory, since the model has no
attention layers.
"""


class LoadedTransformers(Struct, frozen=True):
    """A loaded model.

    engine: not started yet.
    adapters: the registry of its LoRA adapters.
    vision: None for a text-only model.
    """

    engine: BatchingEngine
    adapters: AdapterRegistry
    vision: TransformersVision | None


def load(
    directory: Path,
    limits: EngineLimits,
    options: TransformersOptions,
    files: BlockFiles | None = None,
) -> LoadedTransformers:
    """Load a model from a directory that `AutoModelForCausalLM` or
    `AutoModelForImageTextToText` can load.

    The KV cache takes a share of an accelerator's free memory, or of main memory, see
    `hardware`.

    files: as in BatchingEngine.

    Raises: EngineError.
    """
    network = load_network(directory, options)
    if network.device.type == "cpu":
        # Otherwise torch would use one thread, which the command sets for numpy's BLAS.
        torch.set_num_threads(options.threads or count_usable_cores())
    model, bytes_per_token = build_paged_model(network, options.attention_backend)
    if files and model.has_state:
        raise EngineError(
            f"{directory} has recurrent state, which --kv-offloading-dir does not store: omit the "
            f"option"
        )
    model.samples_on_device = can_sample_on_device(options.sampling_device, network.device)
    vision = (
        load_vision(model, network, directory, options) if is_vision_model(network.config) else None
    )
    if network.device.type == "cuda":
        step_bytes = measure_largest_step(
            model,
            network.device,
            limits.max_num_batched_tokens or _MAX_BATCHED_TOKENS,
            _MAX_STEP_PAIRS,
            min(limits.max_model_len or model.max_positions, model.max_positions),
            bytes_per_token,
        )
        free_bytes: int = torch.cuda.mem_get_info(network.device)[0]
        kv_bytes = int(max(free_bytes - step_bytes, 0) * _KV_MEMORY_SHARE)
        log.info(
            "%s: %d MiB are free beside the weights: %d for the KV cache, %d for a step, %d remain",
            directory,
            free_bytes >> 20,
            kv_bytes >> 20,
            step_bytes >> 20,
            free_bytes - kv_bytes - step_bytes >> 20,
        )
    else:
        # In main memory the cache is allocated as it is used.
        kv_bytes = compute_kv_budget(MAX_TORCH_KV_BYTES)
    config = _build_config(directory, limits, model, bytes_per_token, kv_bytes)
    adapters = AdapterRegistry(model.lora.read)
    engine = BatchingEngine(
        model,
        config,
        build_rng,
        name="transformers-engine",
        adapters=adapters,
        files=files,
        vision_runner=model.vision_runner,
    )
    return LoadedTransformers(engine, adapters, vision)


def _build_config(
    directory: Path,
    limits: EngineLimits,
    model: TransformersModel,
    bytes_per_token: int,
    kv_bytes: int,
) -> EngineConfig:
    """Divide the memory between the KV cache and the state slots, and log the result.

    If the model has both, the state slots take at most half of the memory.
    """
    num_slots = 0
    if model.has_state:
        share = kv_bytes // 2 if bytes_per_token else kv_bytes
        # More slots than sequences that may run at once would never be used.
        num_slots = max(
            min(share // model.bytes_per_slot, limits.max_num_seqs or DEFAULT_MAX_NUM_SEQS), 1
        )
        kv_bytes = max(kv_bytes - num_slots * model.bytes_per_slot, 0)
    config = limits.build_config(
        max_positions=model.max_positions,
        num_kv_tokens=max(kv_bytes // bytes_per_token, 1)
        if bytes_per_token
        else _TOKENS_WITHOUT_KEYS,
        max_num_batched_tokens=_MAX_BATCHED_TOKENS,
        max_step_pairs=_MAX_STEP_PAIRS,
    )
    log.info(
        "%s: KV cache of %d tokens, at most %d MiB, allocated as it is used",
        directory,
        config.num_kv_tokens,
        config.num_kv_tokens * bytes_per_token >> 20,
    )
    if not model.has_state:
        return config
    log.info(
        "%s: recurrent state of %d sequences, at most %d MiB, allocated as it is used; the prefix "
        "cache is off, "
        "because it holds no such state",
        directory,
        num_slots,
        num_slots * model.bytes_per_slot >> 20,
    )
    return replace(config, scheduler=replace(config.scheduler, num_state_slots=num_slots))


def build_paged_model(
    network: Network, attention_backend: str = "auto"
) -> tuple[TransformersModel, int]:
    """Replace the network's attention with paged attention. Returns the model and its
    KV bytes per token.

    Paged attention is first tried with the sliding windows that layers pass, without
    the library's masks, and then with its masks. Raises EngineError if neither
    reproduces the network's own logits.
    """
    kind = type(network).__name__
    model: TransformersModel | None = None
    try:
        model = TransformersModel(network, attention_backend)
        prompts = build_trial_prompts(model.vocab, model.max_positions)
        limits, expected = _compute_references(network, prompts)
    except Exception as error:  # the library's code may raise any exception
        reason = describe_error(error)
        if not isinstance(error, EngineError):
            name = type(error).__name__
            reason = f"the library does not compute its trial prompts ({name}: {reason})"
        raise _explain(
            network, model, EngineError(f"{kind} cannot be batched: {reason}")
        ) from error
    register()
    errors: list[EngineError] = []
    # The first combination that passes is used, so the faster one of each pair comes
    # first.
    for by_token, name in product(
        (False, True) if model.has_state else (False,), (NAME, MASKED_NAME)
    ):
        model.recurrent.by_token = by_token
        try:
            with reduce_limits(network, limits):
                _check_attention(model, network, name, expected)
                return model, _pack_linears(model, network, name, expected)
        except EngineError as error:
            errors.append(error)
    raise _explain(network, model, errors[0]) from errors[0]


def _pack_linears(
    model: TransformersModel, network: Network, name: str, expected: Sequence[Floats]
) -> int:
    """Pack the network's linear layers and check it again; unpack them if that fails.
    Returns KV bytes per token.
    """
    try:
        model.linears.pack()
        return _check_attention(model, network, name, expected)
    except (EngineError, RuntimeError) as error:
        # Some layers of the library read another layer's weight.
        log.info(
            "%s computes with plain linear layers: %s",
            type(network).__name__,
            describe_error(error),
        )
        model.linears.unpack()
        return _check_attention(model, network, name, expected)


def _check_attention(
    model: TransformersModel, network: Network, name: str, expected: Sequence[Floats]
) -> int:
    """Check paged attention of this name. Returns its KV bytes per token. Raises
    EngineError.
    """
    runners: list[TransformersRunner] = []

    def build_paged_runner(num_blocks: int, num_state_slots: int) -> TransformersRunner:
        model.paged_attention = name
        set_attention(network, name)
        runners.append(model.build_runner(num_blocks, num_state_slots))
        return runners[0]

    kind = type(network).__name__
    tolerance = _choose_tolerance(network)
    with model.recurrent.observe():
        check_paging(model, build_paged_runner, expected, kind=kind, tolerance=tolerance)
    if model.recurrent.ignores_state:
        # The check above may miss this: the state of a few tokens may matter less than
        # the tolerance of a 16-bit dtype.
        raise EngineError(
            f"{kind} cannot be batched: its recurrent layers reset their state at every chunk"
        )
    model.bytes_per_slot = runners[0].states.bytes_per_slot
    return runners[0].pool.bytes_per_token


def _explain(network: Network, model: TransformersModel | None, error: EngineError) -> EngineError:
    """Return an error that explains a failed check, if the library marks the network as
    stateful; else the error.
    """
    if getattr(network, "_is_stateful", False) and not (model and model.has_state):
        reason = "its state beside keys and values is not in the library's cache (recurrent layers)"
        return EngineError(f"{type(network).__name__} cannot be batched: {reason}")
    return error


def load_vision(
    model: TransformersModel, network: Network, directory: Path, options: TransformersOptions
) -> TransformersVision | None:
    """Enable vision if the paged model reproduces the network's own logits; otherwise
    return None (text only).
    """
    try:
        processor = load_processor(
            directory, network.config, trust_remote_code=options.trust_remote_code
        )
        vision = TransformersVision(processor)
        vision_runner = TransformersVisionRunner(network)
        model.vision_runner = vision_runner
        check_vision(model, network, processor, vision, tolerance=_choose_tolerance(network))
    except Exception as error:  # the library's code may raise any exception
        log.warning("%s is served without images: %s", directory, find_reason(error))
        model.vision_runner = None
        return None
    finally:
        set_attention(network, model.paged_attention)
    return vision


def _choose_tolerance(network: Network) -> float:
    return 1e-3 if network.dtype == torch.float32 else 5e-2


def _compute_references(
    network: Network, prompts: Sequence[list[int]]
) -> tuple[Limits, list[Floats]]:
    """Compute the network's own logits of the prompts with reduced limits. Returns them
    after the limits that could be reduced.
    """

    def compute(limits: Limits) -> list[Floats]:
        with reduce_limits(network, limits):
            return [_compute_reference(network, prompt) for prompt in prompts]

    return compute_reducible(find_network_limits(network), compute, type(network).__name__)


def _compute_reference(network: Network, ids: list[int]) -> Floats:
    """Compute the network's own logits, the last row from its own cache: some models
    differ without a cache.
    """
    with torch.inference_mode():
        tensor = torch.tensor([ids], device=network.device)
        prefill = network(input_ids=tensor[:, :-1], use_cache=True)
        cache_name = next((name for name in CACHE_NAMES if name in prefill), None)
        if cache_name is None:
            raise EngineError("it returns no cache of keys and values")
        decode = network(
            input_ids=tensor[:, -1:],
            position_ids=torch.tensor([[len(ids) - 1]], device=network.device),
            use_cache=True,
            **{cache_name: prefill[cache_name]},
        )
        return torch.cat([prefill.logits[0], decode.logits[0]]).float().cpu().numpy()
