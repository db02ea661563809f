"""Capabilities of llama.cpp, independent of the model. Pure: does not need llama.cpp."""

from __future__ import annotations

from ...core.engine import CONSTRAINT_FEATURES, Capabilities, Feature

_FEATURES = frozenset(
    {
        *CONSTRAINT_FEATURES,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.REASONING_BUDGET,
        Feature.TOKEN_IDS,
    }
)
_PARAMETERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "include_stop",
        "ignore_eos",
        "truncate_prompt",
        "close_at_limit",
    }
)


def build_capabilities(vocab: int, *, images: bool = False) -> Capabilities:
    """Build the capabilities. vocab: number of token ids. images: whether a projector is loaded."""
    features = _FEATURES | {Feature.IMAGES} if images else _FEATURES
    return Capabilities(features, _PARAMETERS, max_logprobs=vocab)
