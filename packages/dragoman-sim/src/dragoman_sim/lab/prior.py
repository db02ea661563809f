"""The latency coefficients that a fit expects: those that the roofline predicts."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from ..engine.kv_cache_dtype import KV_CACHE_BYTES
from ..engine.latency import TokenCost
from ..engine.profile import Hardware, ModelProfile, ProfileError, SimulatorProfile
from .gpus import Gpu, find_gpu
from .model_shape import ModelShape
from .roofline import BYTES_PER_WEIGHT, Parallelism, predict_latency


class Prior(Struct, frozen=True, forbid_unknown_fields=True):
    """Expected coefficients from hardware and model, in seconds; None is no
    expectation.

    base: needed because a log of a saturated server does not separate it from
        load-dependent cost.
    frontend: time from the client to the queue, which is one of the log's own client
        and not of the hardware.
    per_expert_token, mixed_base: cost of experts that data-parallel ranks share, and of
        a step with a prompt; the fit scales both as a whole.
    """

    base: float | None = None
    per_context_token: float | None = None
    frontend: float = 0.001
    per_expert_token: tuple[TokenCost, ...] = ()
    mixed_base: float = 0.0


def read_prior(profile: SimulatorProfile) -> Prior:
    """Return what a profile, such as a predicted one, leads to expect of the same
    hardware and model.
    """
    latency = profile.latency
    return Prior(
        base=latency.base,
        per_context_token=latency.per_context_token,
        per_expert_token=latency.per_expert_token,
        # Of dense models the fit has no term for it.
        mixed_base=latency.mixed_base if latency.per_expert_token else 0.0,
    )


def predict_prior(hardware: Hardware, model: ModelProfile) -> Prior:
    """Predict by the roofline what is expected of a dense model whose sizes alone are
    known; nothing without its weights or the memory bandwidth.

    A device that is not in the table has the default constants. Without `model.layers`
    their launches and all-reduces are left out.
    """
    gpu = _find_device(hardware)
    if gpu is None or model.weight_bytes is None:
        return Prior()
    shape = ModelShape(
        name=model.name,
        layers=model.layers or 0,
        # Only the costs of a step's tokens depend on the sizes that are 0 here, and the
        # prior has none of them.
        hidden=0,
        head_params=0.0,
        embedding_params=0.0,
        pair_flops=0.0,
        dense_params=model.weight_bytes / BYTES_PER_WEIGHT["bf16"],
        # In numbers of 16 bits, whatever the cache's own format.
        kv_values=(model.kv_bytes_per_token or 0) / KV_CACHE_BYTES["auto"],
        kv_heads=hardware.tensor_parallel,
    )
    latency = predict_latency(gpu, shape, Parallelism(hardware.tensor_parallel))
    return Prior(base=latency.base, per_context_token=latency.per_context_token or None)


def _find_device(hardware: Hardware) -> Gpu | None:
    """Return the device that a name such as `2x NVIDIA H100 SXM` stands for, with the
    bandwidth and the link of the profile where it has them; None if no bandwidth is
    known.
    """
    name = re.sub(r"^\d+ ?x ", "", hardware.name)
    try:
        gpu = find_gpu(name)
    except ProfileError:
        if hardware.memory_bandwidth is None:
            return None
        # Only steps with tokens take time for operations and for the links' bytes.
        gpu = Gpu(
            name,
            memory=0.0,
            memory_bandwidth=hardware.memory_bandwidth,
            flops={"bf16": float("inf")},
            link_bandwidth=float("inf"),
            link_latency=0.0,
        )
    if hardware.memory_bandwidth is not None:
        gpu = replace(gpu, memory_bandwidth=hardware.memory_bandwidth)
    if hardware.link_latency is not None:
        gpu = replace(gpu, link_latency=hardware.link_latency)
    return gpu
