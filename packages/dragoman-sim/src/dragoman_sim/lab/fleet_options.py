"""The configurations of a replica that a plan compares: GPU, parallelism, engine
settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import msgspec
from msgspec import Struct

from ..engine.network_link import TransferCost
from ..engine.profile import ProfileError, SimulatorProfile
from ..engine.speculative_decoding import SpeculativeConfig
from .disaggregated_replay import DisaggregationConfig
from .fleet import Fleet
from .gpus import Gpu
from .model_shape import ModelShape
from .objectives import PlanError
from .replica_router import Routing
from .roofline import Parallelism, predict_profile

_TRANSFER_SECONDS = 0.001
"""Fixed cost of a KV transfer."""


class Speculation(Struct, frozen=True):
    """Speculative decoding of a fleet. acceptance_rates: empty keeps the profile's."""

    config: SpeculativeConfig
    acceptance_rates: tuple[float, ...] = ()

    def merge_into(self, profile: SimulatorProfile) -> SimulatorProfile:
        return msgspec.structs.replace(
            profile,
            engine=self.config.merge_into(profile.engine),
            acceptance_rates=self.acceptance_rates or profile.acceptance_rates,
        )


class FleetOption(Struct, frozen=True, kw_only=True):
    """One configuration of a replica.

    gpu: short name of the GPU.
    devices: number of devices per replica.
    price: price of one device per hour.
    prefill, decode: replicas of each kind in one unit of a disaggregated fleet; 0 and 1
        mean aggregated serving.
    link_bandwidth: bandwidth of KV transfers, in bytes per second.
    """

    gpu: str
    profile: SimulatorProfile
    devices: int
    price: float
    prefill: int = 0
    decode: int = 1
    link_bandwidth: float = 25e9

    @property
    def description(self) -> str:
        engine = self.profile.engine
        hardware = self.profile.hardware
        model = self.profile.model
        split = f" {self.prefill}P:{self.decode}D" if self.prefill else ""
        parallel = f"tp{hardware.tensor_parallel}" + (
            f" dp{hardware.data_parallel}" * (hardware.data_parallel > 1)
            + " ep" * hardware.lock_step
        )
        cache = "" if model.kv_cache_dtype == "auto" else f" kv {model.kv_cache_dtype}"
        return (
            f"{model.name} on {self.gpu} {parallel}{split}{cache} seqs {engine.max_num_seqs} "
            f"budget {engine.max_num_batched_tokens}"
        )

    @property
    def is_moe(self) -> bool:
        """Whether the model is a mixture of experts."""
        return bool(self.profile.latency.per_expert_token)

    @property
    def devices_per_unit(self) -> int:
        return self.devices * (self.prefill + self.decode if self.prefill else 1)

    def build_fleet(self, units: int, routing: Routing) -> Fleet:
        if not self.prefill:
            return Fleet(profile=self.profile, replicas=units, routing=routing)
        bytes_per_token = self.profile.model.kv_bytes_per_token
        if bytes_per_token is None:
            raise PlanError(
                f"profile {self.profile.name}: model.kv_bytes_per_token is missing; KV transfers "
                f"need it"
            )
        cost = TransferCost(bytes_per_token, self.link_bandwidth, _TRANSFER_SECONDS)
        split = DisaggregationConfig(prefill=units * self.prefill, cost=cost, links="pairs")
        return Fleet(
            profile=self.profile, replicas=units * self.decode, routing=routing, split=split
        )


def build_candidates(
    gpus: Iterable[tuple[str, Gpu, float]],
    shapes: Iterable[ModelShape],
    *,
    tensor_parallel: Iterable[int],
    max_num_seqs: Iterable[int],
    max_num_batched_tokens: Iterable[int],
    splits: Iterable[tuple[int, int]] = ((0, 1),),
    data_parallel: Iterable[int] = (1,),
    kv_cache_dtypes: Iterable[str] = ("auto",),
    speculation: Speculation | None = None,
) -> tuple[list[FleetOption], list[str]]:
    """Build all possible combinations; also return why others are impossible (too
    little memory, indivisible layers, a drafter that is not simulated with the model).

    gpus: tuples of name, figures and price per hour.
    tensor_parallel: tensor-parallel sizes.
    max_num_seqs, max_num_batched_tokens: engine settings to try; empty for the
        profile's own.
    splits: pairs of prefill and decode replicas per unit; (0, 1) is aggregated serving.
    data_parallel: numbers of data-parallel ranks, which share the experts if there are
        several.
    kv_cache_dtypes: number formats of keys and values.
    speculation: speculative decoding of all candidates; None without.
    """
    candidates: list[FleetOption] = []
    refused: list[str] = []
    sizes = tuple(max_num_seqs)
    budgets = tuple(max_num_batched_tokens)
    layouts = tuple(splits)
    parallelisms = [
        Parallelism(tensor, data, expert=data > 1)
        for tensor, data in product(tuple(tensor_parallel), tuple(data_parallel))
    ]
    dtypes = tuple(kv_cache_dtypes)
    for shape, (name, gpu, price), parallelism, dtype in product(
        tuple(shapes), tuple(gpus), parallelisms, dtypes
    ):
        try:
            profile = predict_profile(
                gpu,
                msgspec.structs.replace(shape, kv_cache_dtype=dtype),
                parallelism,
                name=f"{name}-{shape.name}-tp{parallelism.tensor}",
            )
        except ProfileError as error:
            refused.append(str(error))
            continue
        if speculation is not None:
            try:
                profile = speculation.merge_into(profile)
            except ValueError as error:
                refused.append(f"{shape.name}: {error}")
                continue
        for seqs, budget, (prefill, decode) in product(
            sizes or (profile.engine.max_num_seqs,),
            budgets or (profile.engine.max_num_batched_tokens,),
            layouts,
        ):
            if prefill and (parallelism.data > 1 or profile.engine.kv_cache_groups):
                refused.append(
                    f"{shape.name}: prefill and decode replicas are planned for models with one KV "
                    f"cache group and without data-parallel ranks"
                )
                continue
            try:
                engine = msgspec.structs.replace(
                    profile.engine, max_num_seqs=seqs, max_num_batched_tokens=budget
                )
            except ValueError as error:
                refused.append(f"{shape.name}: {error}")
                continue
            candidates.append(
                FleetOption(
                    gpu=name,
                    profile=msgspec.structs.replace(profile, engine=engine),
                    devices=parallelism.devices,
                    price=price,
                    prefill=prefill,
                    decode=decode,
                    # KV transfers leave the machine; 50 GB/s is a network of 400 Gbit/s.
                    link_bandwidth=min(gpu.link_bandwidth, 50e9),
                )
            )
    return candidates, refused
