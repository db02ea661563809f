"""What a vLLM can do, as it is configured. Pure: this needs no vLLM."""

from __future__ import annotations

from msgspec import Struct

from ...core.engine import CONSTRAINT_FEATURES, Capabilities, Feature
from ...core.request import GenerationLimits, SamplingOptions

ReasoningDelimiters = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids that begin a thought and those that end it, as the engine was told them at its start."""


class VllmFeatures(Struct, frozen=True):
    """What its configuration says that it can do.

    eos: the token that its grammars end with; None where it takes none. marks: see `asking`. adapters: LoRA is on.
    sleeps: it can give memory back. transfers: it has a KV connector. prioritised: the lowest priority runs first.
    """

    max_model_len: int
    vocab_size: int
    max_logprobs: int
    eos_id: int | None = None
    reasoning_delimiters: ReasoningDelimiters | None = None
    has_lora: bool = False
    can_sleep: bool = False
    has_kv_transfer: bool = False
    has_priorities: bool = False

    def build_capabilities(self) -> Capabilities:
        features = {Feature.TOOLS, Feature.LOGPROBS, Feature.PROMPT_LOGPROBS, Feature.TOKEN_IDS}
        parameters = {*SamplingOptions.__struct_fields__, *GenerationLimits.__struct_fields__, "vllm_xargs"}
        if self.eos_id is not None:
            features |= CONSTRAINT_FEATURES
        if self.reasoning_delimiters is not None:
            features.add(Feature.REASONING_BUDGET)
        if self.has_lora:
            features.add(Feature.LORA)
            parameters.add("lora")
        if self.has_kv_transfer:
            parameters.add("kv_transfer_params")
        return Capabilities(frozenset(features), frozenset(parameters), self.max_logprobs)
