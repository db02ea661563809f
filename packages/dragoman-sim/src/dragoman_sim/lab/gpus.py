"""The table of GPUs, with the figures of their datasheets."""

from __future__ import annotations

import difflib
import re
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.core.strict_yaml import load_yaml

from ..engine.profile import ProfileError


class Gpu(Struct, frozen=True, forbid_unknown_fields=True):
    """An accelerator, as in the table `gpus.yaml`, which explains the fields and units.

    flops: dense operations per second by number format; formats that the device cannot
        multiply are absent.
    bandwidth_efficiency, kv_efficiency: shares of the memory bandwidth that reading
        weights and keys and values reaches.
    compute_efficiency: share of `flops` that matrix products reach.
    collective_efficiency: share of `link_bandwidth` that collectives reach.
    layer_seconds: launches and small kernels of one layer.
    has_sink_kernel: attention with sinks (gpt-oss) has a fast kernel, such as
        FlashAttention 3 on Hopper.
    """

    name: str
    memory: float
    memory_bandwidth: float
    flops: dict[str, float]
    link_bandwidth: float
    link_latency: float
    bandwidth_efficiency: float = 0.85
    kv_efficiency: float = 0.7
    compute_efficiency: float = 0.5
    layer_seconds: float = 35e-6
    collective_efficiency: float = 0.551
    has_sink_kernel: bool = False
    watts: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if "bf16" not in self.flops:
            raise ValueError("flops: bf16, which attention is computed in, is missing")


def load_gpus() -> dict[str, Gpu]:
    """Load the GPU table, by short name."""
    text = (files("dragoman_sim.lab") / "gpus.yaml").read_bytes()
    return msgspec.convert(load_yaml(text), dict[str, Gpu], strict=False)


def find_gpu(name: str) -> Gpu:
    """Return a GPU of the table, or of a YAML file with one entry of the same format.
    Raises ProfileError.
    """
    if name.endswith((".yaml", ".yml")):
        try:
            return msgspec.convert(load_yaml(Path(name).read_bytes()), Gpu, strict=False)
        except (OSError, ValueError) as error:
            raise ProfileError(f"{name}: {error}") from None
    gpus = load_gpus()
    # `H100`, `h100_sxm` and `NVIDIA RTX 4090` name the same devices as `h100-sxm` and
    # `rtx4090`.
    spellings = {_normalize(gpu.name): short for short, gpu in gpus.items()}
    spellings |= {_normalize(gpu): gpu for gpu in gpus}
    spellings |= {gpu.removesuffix("-sxm"): gpu for gpu in gpus}
    spelling = _normalize(name)
    if spelling not in spellings:
        close = difflib.get_close_matches(spelling, spellings, n=1)
        hint = f"; did you mean {spellings[close[0]]}?" if close else ""
        raise ProfileError(
            f"there is no GPU {name!r}; known are {', '.join(gpus)}, or a YAML file with its "
            f"figures{hint}"
        )
    return gpus[spellings[spelling]]


def _normalize(name: str) -> str:
    """Return a name without vendor, capital letters and separators."""
    return re.sub(r"nvidia|geforce|amd instinct|apple|[-_ ]", "", name.lower())
