"""A model's defaults for sampling parameters that a request does not set."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ..core.request import Sampling

_Probability = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class GenerationConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults under the names of a model's generation_config.json."""

    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: _Probability | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        numbers = (value for value in msgspec.structs.astuple(self) if value is not None)
        if not all(map(math.isfinite, numbers)):
            raise ValueError("every number must be finite")

    def merge_into(self, defaults: Sampling) -> Sampling:
        """These values over the given defaults. top_k: -1 disables it, as 0 does."""
        overrides = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        overrides.pop("max_new_tokens", None)
        if "top_k" in overrides:
            overrides["top_k"] = max(overrides["top_k"], 0)
        return msgspec.structs.replace(defaults, **overrides)
