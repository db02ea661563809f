"""Settings of a served simulation, and what follows from them. Runs nothing."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from ...core.engine import CONSTRAINT_FEATURES, Capabilities, Feature, TokenRequest, check_prompt
from ...core.errors import RequestError
from ...core.request import GenerationLimits, SamplingOptions
from .config import SimulatedSchedulerConfig
from .disaggregation import TransferCost
from .faults import Fault
from .host_link import OffloadingSettings
from .kv_events import KvEventsVersion
from .kv_notifications import KvTransferConfig
from .kv_publisher import KvEventsConfig
from .latency import LatencyModel, StepTime, add_noise

_FEATURES = frozenset(
    {
        *CONSTRAINT_FEATURES,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.REASONING_BUDGET,
        Feature.TOKEN_IDS,
        Feature.LORA,
    }
)
_EXTRAS = frozenset({"lora", "reply", "fault", "data_parallel_rank"})


class KvTransferSettings(Struct, frozen=True):
    """Disaggregated prefill and decode. tp_size: devices of this instance."""

    config: KvTransferConfig
    cost: TransferCost
    tp_size: int = 1


class SimulatorConfig(Struct, frozen=True):
    """The simulated engine, and how a server drives it.

    time_scale: 10 is ten times as fast.
    warm_up: seconds from startup to readiness.
    ranks: data-parallel copies of the engine core.
    """

    scheduler: SimulatedSchedulerConfig
    latency: LatencyModel
    frontend_seconds: float = 0.0
    noise: float = 0.0
    time_scale: float = 1.0
    warm_up: float = 0.0
    ranks: int = 1
    acceptance_rates: tuple[float, ...] = ()
    seed: int = 0
    max_num_waiting: int = 2048
    accepts_images: bool = False
    faults: tuple[Fault, ...] = ()
    kv_events: KvEventsConfig | None = None
    kv_events_version: KvEventsVersion = "0.33"
    kv_transfer: KvTransferSettings | None = None
    offloading: OffloadingSettings | None = None


def build_capabilities(config: SimulatorConfig, vocab_size: int) -> Capabilities:
    extras = _EXTRAS if config.kv_transfer is None else _EXTRAS | {"kv_transfer_params"}
    return Capabilities(
        features=_FEATURES | {Feature.IMAGES} if config.accepts_images else _FEATURES,
        parameters=frozenset(SamplingOptions.__struct_fields__)
        | frozenset(GenerationLimits.__struct_fields__)
        | extras,
        max_logprobs=vocab_size,
    )


def build_step_time(config: SimulatorConfig, rank: int) -> StepTime:
    """Build the step time of a rank, with its own noise, in simulated time."""
    seconds: StepTime = config.latency.compute_seconds
    return add_noise(seconds, config.noise, np.random.default_rng([config.seed, rank])) if config.noise else seconds


def check_request(request: TokenRequest, vocab: int, max_model_len: int) -> None:
    """Validate a request. Raises RequestError if it exceeds the engine's size."""
    check_prompt(request.prompt, vocab, max_model_len)
    if request.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1", param="max_tokens")
