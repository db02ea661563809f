"""Loads a model of the transformers library into a batching engine, and checks its text
and vision outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ...core.engine import TokenRequest
from ...core.errors import EngineError
from ..batching import (
    AdapterRegistry,
    BLOCK_SIZE,
    BatchingEngine,
    BlockFiles,
    Chunk,
    EngineConfig,
    EngineLimits,
    build_rng,
)
from ..batching.engine import DEFAULT_MAX_NUM_SEQS
from ..batching.sequence import Sequence as Running
from ..batching.verify import build_trial_prompts, check_paging
from ..hardware import MAX_TORCH_KV_BYTES, compute_kv_budget, count_usable_cores
from ..image_decoding import decode_image
from .backend import Network, torch
from .device_sampler import can_sample_on_device
from .model import Floats, TransformersModel, TransformersOptions, TransformersRunner, load_network
from .paged_attention import MASKED_NAME, NAME, reduce_limits, register, set_attention
from .recurrent import CACHE_NAMES
from .vision import (
    TransformersVision,
    TransformersVisionRunner,
    VisionInputs,
    VisionProcessor,
    is_vision_model,
    load_processor,
    move_to_device,
)

log = logging.getLogger(__name__)

_KV_MEMORY_SHARE = 0.85
"""Share of an accelerator's free memory, after the weights are loaded, for the KV cache
and state slots.
"""
_TOKENS_WITHOUT_KEYS = 1 << 22
"""Capacity in tokens of a KV cache that takes no memory, since the model has no
attention layers.
"""
_IMAGE_SIZES = ((64, 48), (32, 96))
"""Width and height of each test image, pixels."""


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
        kv_bytes = int(torch.cuda.mem_get_info(network.device)[0] * _KV_MEMORY_SHARE)
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
        max_num_batched_tokens=2048,
        max_step_pairs=1 << 24,
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
        with reduce_limits(network):
            prompts = build_trial_prompts(model.vocab, model.max_positions)
            expected = [_compute_reference(network, prompt) for prompt in prompts]
    except Exception as error:  # the library's code may raise any exception
        reason = (
            error.message if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
        )
        first_line = reason.strip().partition("\n")[0]
        raise _explain(
            network, model, EngineError(f"{kind} cannot be batched: {first_line}")
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
            with reduce_limits(network):
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
            str(error).partition("\n")[0],
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
    except EngineError as error:
        log.warning("%s is served without images: %s", directory, error.message)
        model.vision_runner = None
        return None
    finally:
        set_attention(network, model.paged_attention)
    return vision


def _choose_tolerance(network: Network) -> float:
    return 1e-3 if network.dtype == torch.float32 else 5e-2


def _compute_reference(network: Network, ids: list[int]) -> Floats:
    """Compute the network's own logits, the last row from its own cache: some models
    differ without a cache.
    """
    with torch.inference_mode():
        tensor = torch.tensor([ids], device=network.device)
        prefill = network(input_ids=tensor[:, :-1], use_cache=True)
        cache_name = next(name for name in CACHE_NAMES if name in prefill)
        decode = network(
            input_ids=tensor[:, -1:],
            position_ids=torch.tensor([[len(ids) - 1]], device=network.device),
            use_cache=True,
            **{cache_name: prefill[cache_name]},
        )
        return torch.cat([prefill.logits[0], decode.logits[0]]).float().cpu().numpy()


# A self-check of vision at startup: paged logits must match the network's own. The
# prompt has two images, each split across chunks.


def check_vision(
    model: TransformersModel,
    network: Network,
    processor: VisionProcessor,
    vision: TransformersVision,
    *,
    tolerance: float,
) -> None:
    """Check vision. Raises EngineError. On success the network's attention is paged
    afterwards.

    tolerance: relative to the largest logit.
    """
    files: list[bytes] = []
    for width, height in _IMAGE_SIZES:
        pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        file = BytesIO()
        import_module("PIL.Image").fromarray(pixels).save(file, "PNG")
        files.append(file.getvalue())
    try:
        texts, inputs = processor.process([decode_image(data) for data in files])
        first, second = texts
        ids: list[int] = processor.tokenizer(f"a{first}b{second}c", add_special_tokens=False)[
            "input_ids"
        ]
        prepared = vision.prepare(files)
        if [image.text for image in prepared] != texts:
            raise EngineError("the result for an image depends on other images")
        images = vision.locate(ids, prepared)
        boundaries = [0, *((image.begin + image.end) // 2 for image in images), len(ids)]
        request = TokenRequest(id="see", prompt=tuple(ids), max_tokens=1, images=images)
        set_attention(network, model.own_attention)
        model.long_rope.deactivate()
        image_mask = [
            int(any(image.begin <= position < image.end for image in images))
            for position in range(len(ids))
        ]
        network_inputs = {name: move_to_device(network, tensor) for name, tensor in inputs.items()}
        expected = _compute_image_reference(
            network, ids, image_mask, network_inputs, [boundary - 1 for boundary in boundaries[1:]]
        )
        set_attention(network, model.paged_attention)
        actual = _compute_in_chunks(model, request, boundaries)
    except (
        RuntimeError,
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        NotImplementedError,
    ) as error:
        raise EngineError(f"its vision cannot be batched: {error}") from error
    if not np.abs(actual - expected).max() <= tolerance * np.abs(expected).max():
        raise EngineError("its vision cannot be batched: its output with paged attention differs")


def _compute_image_reference(
    network: Network, ids: list[int], image_mask: list[int], inputs: VisionInputs, rows: list[int]
) -> Floats:
    """Compute the network's own logits of these rows. image_mask: 1 at image tokens,
    for models that need it.
    """
    tensor_options = {"device": network.device}
    if hasattr(network.model, "get_rope_index"):
        inputs = {**inputs, "mm_token_type_ids": torch.tensor([image_mask], **tensor_options)}
    with torch.inference_mode():
        logit_rows = torch.tensor(rows, **tensor_options)
        output = network(
            input_ids=torch.tensor([ids], **tensor_options),
            use_cache=False,
            logits_to_keep=logit_rows,
            **inputs,
        )
    return output.logits[0].float().cpu().numpy()


def _compute_in_chunks(
    model: TransformersModel, request: TokenRequest, boundaries: Sequence[int]
) -> Floats:
    sequence = Running(
        0, request, vocab=model.vocab, max_model_len=len(request.prompt) + 1, rng_factory=build_rng
    )
    count = -(-len(request.prompt) // BLOCK_SIZE)
    sequence.blocks = list(range(1, count + 1))
    sequence.state_slot = 0 if model.has_state else None
    runner = model.build_runner(count + 1, num_state_slots=1 if model.has_state else 0)
    rows = [
        runner.forward([Chunk(sequence, begin, end)]).compute_last_logits([0])
        for begin, end in pairwise(boundaries)
    ]
    return np.concatenate(rows)
