"""What a vLLM configuration can do; known without vLLM."""

from __future__ import annotations

from msgspec import Struct

from ...core.capabilities import CONSTRAINT_FEATURES, Capabilities, Feature

ReasoningDelimiters = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids that begin and end reasoning, as configured at startup."""


COPIED_PARAMETERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""Parameters that `build_sampling_params` copies to vLLM's fields of the same names."""


_CONVERTED_PARAMETERS = ("seed", "logit_bias", "allowed_token_ids", "bad_words")
"""Parameters that `build_sampling_params` converts."""


# Without close_at_limit: vLLM runs grammars in its own process, where the end of an
# output cannot be replaced.
_LIMIT_AND_STOP_PARAMETERS = (
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "include_stop",
    "ignore_eos",
    "truncate_prompt",
)


_EXTRAS = ("vllm_xargs", "data_parallel_rank", "session_id")


class VllmFeatures(Struct, frozen=True):
    """Features of a vLLM configuration.

    max_model_len: tokens of the prompt and the output together.
    eos_id: the token that ends the output of a grammar; None without grammar support.
    reasoning_delimiters: None if reasoning budgets are not supported.
    can_sleep: sleep mode is enabled.
    has_kv_transfer: a KV connector is configured.
    has_priorities: vLLM's scheduling policy is `priority` (a lower value runs earlier).
    has_tracing: vLLM records spans.
    has_images: the model reads images.
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
    has_tracing: bool = False
    has_images: bool = False

    def build_capabilities(self) -> Capabilities:
        features = {Feature.TOOLS, Feature.LOGPROBS, Feature.PROMPT_LOGPROBS, Feature.TOKEN_IDS}
        parameters = {
            *COPIED_PARAMETERS,
            *_CONVERTED_PARAMETERS,
            *_LIMIT_AND_STOP_PARAMETERS,
            *_EXTRAS,
        }
        if self.eos_id is not None:
            features |= CONSTRAINT_FEATURES
        if self.reasoning_delimiters is not None:
            features.add(Feature.REASONING_BUDGET)
        if self.has_lora:
            features.add(Feature.LORA)
            parameters.add("lora")
        if self.has_images:
            features.add(Feature.IMAGES)
        if self.has_kv_transfer:
            parameters.add("kv_transfer_params")
        return Capabilities(frozenset(features), frozenset(parameters), self.max_logprobs)
