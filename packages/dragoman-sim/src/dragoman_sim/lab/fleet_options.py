"""The configurations of a replica that a plan compares: GPU, parallelism, engine
settings.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from ..engine.network_link import TransferCost
from ..engine.profile import ProfileError, SimulatorProfile
from .disaggregated_replay import DisaggregationConfig
from .fleet import Fleet
from .gpus import Gpu
from .model_shape import ModelShape
from .objectives import PlanError
from .replica_router import Routing
from .roofline import Parallelism, predict_profile

_TRANSFER_SECONDS = 0.001
"""Fixed cost of a KV transfer."""


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
        split = f" {self.prefill}P:{self.decode}D" if self.prefill else ""
        parallel = f"tp{hardware.tensor_parallel}" + (
            f" dp{hardware.data_parallel}" * (hardware.data_parallel > 1)
        )
        return (
            f"{self.gpu} {parallel}{split} seqs {engine.max_num_seqs} budget "
            f"{engine.max_num_batched_tokens}"
        )

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
) -> tuple[list[FleetOption], list[str]]:
    """Build all possible combinations; also return why others are impossible (too
    little memory, indivisible layers).

    gpus: tuples of name, figures and price per hour.
    tensor_parallel: tensor-parallel sizes.
    max_num_seqs, max_num_batched_tokens: engine settings to try; empty for the
        profile's own.
    splits: pairs of prefill and decode replicas per unit; (0, 1) is aggregated serving.
    """
    candidates: list[FleetOption] = []
    refused: list[str] = []
    sizes = tuple(max_num_seqs)
    budgets = tuple(max_num_batched_tokens)
    layouts = tuple(splits)
    devices = tuple(tensor_parallel)
    for shape in shapes:
        for name, gpu, price in gpus:
            for tensor in devices:
                try:
                    profile = predict_profile(
                        gpu, shape, Parallelism(tensor), name=f"{name}-{shape.name}-tp{tensor}"
                    )
                except ProfileError as error:
                    refused.append(str(error))
                    continue
                for seqs in sizes or (profile.engine.max_num_seqs,):
                    for budget in budgets or (profile.engine.max_num_batched_tokens,):
                        engine = msgspec.structs.replace(
                            profile.engine, max_num_seqs=seqs, max_num_batched_tokens=budget
                        )
                        candidates += [
                            FleetOption(
                                gpu=name,
                                profile=msgspec.structs.replace(profile, engine=engine),
                                devices=tensor,
                                price=price,
                                prefill=prefill,
                                decode=decode,
                                # KV transfers leave the machine; 50 GB/s is a network
                                # of 400 Gbit/s.
                                link_bandwidth=min(gpu.link_bandwidth, 50e9),
                            )
                            for prefill, decode in layouts
                        ]
    return candidates, refused
