"""Capabilities of a batching engine, independent of the model. Pure."""

from __future__ import annotations

from ...core.engine import CONSTRAINT_FEATURES, Capabilities, Feature
from ...core.request import GenerationLimits, SamplingOptions

_FEATURES = frozenset(
    {
        *CONSTRAINT_FEATURES,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.LOGPROB_TOKEN_IDS,
        Feature.REASONING_BUDGET,
        Feature.TOKEN_IDS,
    }
)
_PARAMETERS = frozenset(SamplingOptions.__struct_fields__) | frozenset(GenerationLimits.__struct_fields__)


def build_capabilities(vocab: int, *, lora: bool = False, images: bool = False) -> Capabilities:
    """Build the capabilities.

    vocab: number of token ids.
    lora, images: whether the model supports adapters and image inputs.
    """
    optional = {Feature.LORA: lora, Feature.IMAGES: images}
    return Capabilities(
        features=_FEATURES | {feature for feature, supported in optional.items() if supported},
        parameters=_PARAMETERS | {"lora"} if lora else _PARAMETERS,
        max_logprobs=vocab,
    )
