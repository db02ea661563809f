"""Token counts of routes that do not generate text."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from .base import Profile


class PromptUsage(Struct, frozen=True, omit_defaults=True):
    """The usage of a prompt.

    completion_tokens, prompt_tokens_details: only in vLLM's profile.
    """

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int | UnsetType = UNSET
    prompt_tokens_details: UnsetType | None = UNSET


def build_prompt_usage(prompt_tokens: int, profile: Profile) -> PromptUsage:
    if profile is Profile.VLLM:
        return PromptUsage(prompt_tokens, prompt_tokens, 0, None)
    return PromptUsage(prompt_tokens, prompt_tokens)
