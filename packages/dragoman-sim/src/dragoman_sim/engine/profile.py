"""Profiles of hardware and model: engine settings, latency coefficients and their
error, in a YAML file.

Profiles that ship with the package are named after hardware and model.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from .kv_cache_dtype import KV_CACHE_BYTES, check_kv_cache_dtype
from .latency import LatencyModel
from .offloading_settings import OffloadingSettings
from .scheduler_config import SimulatedSchedulerConfig
from .speculative_decoding import check_acceptance_rates

SUFFIX = ".yaml"
PROFILES_DIR = Path(__file__).with_name("profiles")


class ProfileError(ValueError):
    """A profile that does not exist or cannot be read; the message names the place."""


class Hardware(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The accelerators of an engine.

    memory_bandwidth: of one device, bytes a second.
    tensor_parallel: devices that share every layer.
    data_parallel: ranks of a server, each with its own scheduler and KV cache; engine
        settings and latency are of one.
    lock_step: whether the ranks share experts, and so begin and end every step
        together.
    link_latency: seconds of a collective between these devices, without the time for
        its bytes.
    watts: board power of one device.
    """

    name: str
    memory_bandwidth: float | None = None
    tensor_parallel: int = 1
    data_parallel: int = 1
    lock_step: bool = False
    link_latency: float | None = None
    watts: float | None = None

    @property
    def ranks(self) -> RankLayout:
        return RankLayout(self.data_parallel, self.lock_step)


class ModelProfile(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The model of a profile.

    weight_bytes: bytes of weights that a step reads.
    kv_bytes_per_token: 2 * layers * kv heads * head size * bytes per number.
    layers: each has two all-reduces under tensor parallelism.
    kv_cache_dtype: number format of keys and values, see `KV_CACHE_BYTES`.
    """

    name: str
    weight_bytes: float | None = None
    kv_bytes_per_token: int | None = None
    layers: int | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        check_kv_cache_dtype(self.kv_cache_dtype)


class MetricError(Struct, frozen=True, forbid_unknown_fields=True):
    """The relative error of a metric, (simulated - measured) / measured; 0.01 is one
    percent too slow.
    """

    mean: float
    p50: float
    p90: float
    p99: float


class HeldOutError(Struct, frozen=True, forbid_unknown_fields=True):
    """Errors of the simulation on held-out requests."""

    ttft: MetricError
    latency: MetricError
    tpot: MetricError


class ErrorSpread(Struct, frozen=True, forbid_unknown_fields=True):
    """The range of the error over arbitrary choices of the fit: clock offsets, and
    which requests are fitted.
    """

    lowest: HeldOutError
    highest: HeldOutError


class Calibration(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The source of the latency coefficients, and their error.

    fitted, held_out: numbers of requests.
    spread: range of the error over several fits.
    """

    source: str
    fitted: int
    held_out: int
    error: HeldOutError | None = None
    spread: ErrorSpread | None = None


class SimulatorProfile(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A complete simulator profile.

    frontend_seconds: time from the client to the engine's queue.
    noise: sigma of a step's log-normal factor; 0 is no noise.
    acceptance_rates: of the first, second, ... draft of speculative decoding; empty
        means `latency.DEFAULT_RATES`.
    """

    name: str
    hardware: Hardware
    model: ModelProfile
    engine: SimulatedSchedulerConfig
    latency: LatencyModel
    frontend_seconds: float = 0.001
    noise: float = 0.0
    calibration: Calibration | None = None
    acceptance_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.frontend_seconds < float("inf") or not 0 <= self.noise < float("inf"):
            raise ValueError("frontend_seconds and noise must not be negative")
        check_acceptance_rates(self.acceptance_rates)

    def join_kv_cache_groups(self) -> SimulatorProfile:
        """Return this profile with layers that all keep everything, as vLLM does with
        `--disable-hybrid-kv-cache-manager`. Raises ValueError.
        """
        groups = self.engine.kv_cache_groups
        if not groups:
            return self
        if any(group.kind == "state" for group in groups):
            raise ValueError(
                f"profile {self.name}: its model has layers with a state, which need the hybrid KV "
                f"cache manager; leave out --disable-hybrid-kv-cache-manager"
            )
        # A block of all layers is as large as one of every table.
        blocks = self.engine.num_gpu_blocks // sum(group.tables for group in groups)
        engine = msgspec.structs.replace(
            self.engine, kv_cache_groups=(), num_gpu_blocks=max(2, blocks)
        )
        return msgspec.structs.replace(self, engine=engine)

    def convert_kv_cache(self, dtype: str) -> SimulatorProfile:
        """Return this profile with keys and values of another number format: as much
        memory has more or fewer blocks, and reading a token's takes more or less time.
        Raises ValueError.
        """
        if dtype == self.model.kv_cache_dtype:
            return self
        ratio = KV_CACHE_BYTES[check_kv_cache_dtype(dtype)]
        ratio /= KV_CACHE_BYTES[self.model.kv_cache_dtype]
        if any(group.kind == "state" for group in self.engine.kv_cache_groups) and ratio != 1:
            raise ValueError(
                f"profile {self.name}: its blocks hold states too, whose size --kv-cache-dtype "
                f"does not change; predict one with `dragoman profile --kv-cache-dtype {dtype}`"
            )
        size = self.model.kv_bytes_per_token
        replace = msgspec.structs.replace
        return replace(
            self,
            model=replace(
                self.model,
                kv_cache_dtype=dtype,
                kv_bytes_per_token=None if size is None else round(size * ratio),
            ),
            engine=replace(
                self.engine, num_gpu_blocks=max(2, int(self.engine.num_gpu_blocks / ratio))
            ),
            latency=replace(self.latency, per_context_token=self.latency.per_context_token * ratio),
        )

    def build_offloading(
        self, gibibytes: float, bandwidth: float | None = None, base_seconds: float | None = None
    ) -> OffloadingSettings:
        """Build the settings of KV offloading for each engine core. None keeps a
        default. Raises ValueError.

        gibibytes: size of the host memory.
        """
        if self.model.kv_bytes_per_token is None:
            raise ValueError(
                f"profile {self.name}: model.kv_bytes_per_token is missing; KV offloading needs it"
            )
        settings = OffloadingSettings(
            size=gibibytes * 2**30,
            bytes_per_token=self.model.kv_bytes_per_token,
            num_devices=self.hardware.tensor_parallel,
        )
        if bandwidth is not None:
            settings = msgspec.structs.replace(settings, bandwidth=bandwidth)
        if base_seconds is not None:
            settings = msgspec.structs.replace(settings, base_seconds=base_seconds)
        return settings


def loads(text: str | bytes, source: str = "profile") -> SimulatorProfile:
    """Parse a profile. Raises ProfileError, which names the source and the field."""
    from dragoman.core.strict_yaml import load_yaml  # noqa: PLC0415 - yaml takes long to import

    try:
        return msgspec.convert(
            load_yaml(text), SimulatorProfile, strict=False
        )  # YAML 1.1 parses 1e-5 as text
    except ValueError as error:
        raise ProfileError(f"{source}: {error}") from None


def list_profiles() -> list[str]:
    """List the names of the profiles that ship with the package."""
    return sorted(
        entry.name.removesuffix(SUFFIX)
        for entry in PROFILES_DIR.iterdir()
        if entry.name.endswith(SUFFIX)
    )


def load(name: str) -> SimulatorProfile:
    """Load a shipped profile by its name, or any by its path (with a slash or suffix).
    Raises ProfileError.
    """
    if "/" in name or name.endswith((SUFFIX, ".yml")):
        try:
            return loads(Path(name).read_bytes(), name)
        except OSError as error:
            raise ProfileError(f"{name}: {error.strerror}") from None
    if name not in list_profiles():
        raise ProfileError(
            f"there is no profile {name!r}; included profiles are {', '.join(list_profiles())}"
        )
    return loads((PROFILES_DIR / f"{name}{SUFFIX}").read_bytes(), name)


SECTION_COMMENTS = {
    "hardware": "memory_bandwidth: bytes a second of one device",
    "model": "weight_bytes: read by a step; kv_bytes_per_token: 2 * layers * kv heads * head size "
    "* bytes a number",
    "engine": "vLLM's settings; the rest have vLLM's defaults",
    "latency": "seconds of a step = base + per_token (each token of the step beyond so many) + "
    "per_context_token\n"
    "# (each token that a decoding sequence looks back at) + per_prefill_pair (each query and key "
    "of a prompt's chunk)",
    "frontend_seconds": "from the client to the engine's queue",
    "noise": "standard deviation of the logarithm of a step's random factor",
    "calibration": "error: (simulated - measured) / measured over the held-out requests",
}


def dumps(profile: SimulatorProfile) -> str:
    """Serialize as YAML with a comment on every section; inverse of `loads`."""
    import yaml  # noqa: PLC0415 - as above

    sections = msgspec.to_builtins(profile)
    parts: list[str] = []
    for name, value in sections.items():
        note = f"# {SECTION_COMMENTS[name]}\n" if name in SECTION_COMMENTS else ""
        parts.append(
            note + yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True, width=110)
        )
    return "\n".join(parts)


class RankLayout(Struct, frozen=True):
    """The data-parallel ranks of a server. lock_step: whether they share experts, and
    so step together.
    """

    count: int = 1
    lock_step: bool = False
