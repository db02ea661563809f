"""Capabilities of vLLM as configured. Pure: does not need vLLM."""

from __future__ import annotations

from msgspec import Struct

from ...core.engine import CONSTRAINT_FEATURES, Capabilities, Feature
from ...core.request import GenerationLimits, SamplingOptions

ReasoningDelimiters = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids that begin and end reasoning, as configured at startup."""


class VllmFeatures(Struct, frozen=True):
    """Features of a vLLM configuration.

    eos_id: the token that ends its grammars; None without grammar support.
    reasoning_delimiters: see `request`.
    can_sleep: sleep mode is enabled.
    has_kv_transfer: a KV connector is configured.
    has_priorities: the lowest priority runs first.
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
        # vLLM compiles and runs grammars in its own process, where the end of an answer cannot be replaced.
        parameters.remove("close_at_limit")
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
