"""The latency coefficients that hardware and model lead to expect."""

from __future__ import annotations

from msgspec import Struct

from .latency import TokenCost


class Prior(Struct, frozen=True, forbid_unknown_fields=True):
    """Expected coefficients from hardware and model, in seconds; None is no
    expectation.

    base: needed because a log of a saturated server does not separate it from
        load-dependent cost.
    frontend: time from the client to the queue.
    per_expert_token, mixed_base: cost of experts that data-parallel ranks share, and of
        a step with a prompt; the fit scales both as a whole.
    """

    base: float | None = None
    per_context_token: float | None = None
    frontend: float = 0.001
    per_expert_token: tuple[TokenCost, ...] = ()
    mixed_base: float = 0.0


def build_prior(
    *,
    weight_bytes: float,
    kv_bytes_per_token: float | None,
    memory_bandwidth: float,
    tensor_parallel: int = 1,
    all_reduce_seconds: float = 0.0,
) -> Prior:
    """Build the prior of a roofline model: a step reads all weights once, at about 80%
    of the bandwidth.

    weight_bytes: bytes of the weights.
    memory_bandwidth: of one device, in bytes per second.
    all_reduce_seconds: latency of all layers' all-reduces together, without the time
        for the tokens' bytes.
    """
    bandwidth = memory_bandwidth * tensor_parallel
    context = None if kv_bytes_per_token is None else kv_bytes_per_token / bandwidth
    return Prior(
        base=1.25 * weight_bytes / bandwidth + all_reduce_seconds, per_context_token=context
    )
