"""What a vLLM can do, as it is configured. Pure: this needs no vLLM."""

from __future__ import annotations

from msgspec import Struct

from ...core.engine import CONSTRAINTS, Capabilities, Feature
from ...core.request import Limits, SamplingOptions

ThoughtMarks = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids that begin a thought and those that end it, as the engine was told them at its start."""


class Facts(Struct, frozen=True):
    """What its configuration says that it can do.

    eos: the token that its grammars end with; None where it takes none. marks: see `asking`. adapters: LoRA is on.
    sleeps: it can give memory back. transfers: it has a KV connector. prioritised: the lowest priority runs first.
    """

    max_model_len: int
    vocab_size: int
    max_logprobs: int
    eos: int | None = None
    marks: ThoughtMarks | None = None
    adapters: bool = False
    sleeps: bool = False
    transfers: bool = False
    prioritised: bool = False

    def capabilities(self) -> Capabilities:
        features = {Feature.TOOLS, Feature.LOGPROBS, Feature.PROMPT_LOGPROBS, Feature.TOKEN_IDS}
        parameters = {*SamplingOptions.__struct_fields__, *Limits.__struct_fields__, "vllm_xargs"}
        if self.eos is not None:
            features |= CONSTRAINTS
        if self.marks is not None:
            features.add(Feature.REASONING_BUDGET)
        if self.adapters:
            features.add(Feature.LORA)
            parameters.add("lora")
        if self.transfers:
            parameters.add("kv_transfer_params")
        return Capabilities(frozenset(features), frozenset(parameters), self.max_logprobs)
