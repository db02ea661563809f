"""What an engine of this kind can do, whatever model it steps. Pure."""

from __future__ import annotations

from ...core.engine import CONSTRAINTS, Capabilities, Feature
from ...core.request import Limits, SamplingOptions

_FEATURES = frozenset(
    {
        *CONSTRAINTS,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.REASONING_BUDGET,
        Feature.TOKEN_IDS,
    }
)
_PARAMETERS = frozenset(SamplingOptions.__struct_fields__) | frozenset(Limits.__struct_fields__)


def capabilities(vocab: int, *, lora: bool = False, images: bool = False) -> Capabilities:
    """vocab: token ids. lora, images: what only some models are served with."""
    beside = {Feature.LORA: lora, Feature.IMAGES: images}
    return Capabilities(
        features=_FEATURES | {feature for feature, there in beside.items() if there},
        parameters=_PARAMETERS | {"lora"} if lora else _PARAMETERS,
        max_logprobs=vocab,
    )
