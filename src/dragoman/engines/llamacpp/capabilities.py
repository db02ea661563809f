"""What llama.cpp can do, whatever model it has. Pure: this needs no llama.cpp."""

from __future__ import annotations

from ...core.engine import CONSTRAINT_FEATURES, Capabilities, Feature

_FEATURES = frozenset(
    {
        *CONSTRAINT_FEATURES,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.TOKEN_IDS,
    }
)
_PARAMETERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
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
    }
)
"""Presence and frequency penalties are not among them: llama.cpp's count the prompt's tokens too."""


def build_capabilities(vocab: int, *, images: bool = False) -> Capabilities:
    """vocab: token ids. images: with a projector."""
    features = _FEATURES | {Feature.IMAGES} if images else _FEATURES
    return Capabilities(features, _PARAMETERS, max_logprobs=vocab)
