"""Fill-in-the-middle: the prompt of a model that was trained to write what is between two texts.

The order is prefix, suffix, middle (arXiv:2207.14255), as the model cards of all families below give it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from .tokenizer import HfTokenizer


class InfillTokens(Struct, frozen=True):
    """The control tokens that mark the parts of a fill-in-the-middle prompt, and those that end an answer."""

    prefix: str
    suffix: str
    middle: str
    ends: tuple[str, ...] = ()


INFILL_FAMILIES = (
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma; file separators end an answer.
    InfillTokens(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    # StarCoder2, SantaCoder, Granite Code
    InfillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<file_sep>", "<repo_name>")),
    InfillTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>",)),
    # DeepSeek-Coder: the hole is where the suffix begins.
    InfillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # Seed-Coder
    InfillTokens("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
    # Code Llama
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
)


class InfillPrompt(Struct, frozen=True):
    """A prompt for the text between two others.

    ids: the prompt. stop_ids: tokens besides end-of-sequence that end the answer.
    """

    ids: tuple[int, ...]
    stop_ids: tuple[int, ...]


def find_infill_tokens(special_tokens: Mapping[str, int]) -> InfillTokens | None:
    """The first family whose three tokens are in the vocabulary."""
    return next(
        (
            family
            for family in INFILL_FAMILIES
            if all(name in special_tokens for name in (family.prefix, family.suffix, family.middle))
        ),
        None,
    )


def build_infill_prompt(tokenizer: HfTokenizer, tokens: InfillTokens, prefix: str, suffix: str) -> InfillPrompt:
    """Build the prompt. Names of control tokens in the texts are plain text."""
    special = tokenizer.special_tokens
    ids = (
        *tokenizer.wrapping.prefix,
        special[tokens.prefix],
        *tokenizer.encode(prefix, special=False),
        special[tokens.suffix],
        *tokenizer.encode(suffix, special=False),
        special[tokens.middle],
    )
    ends = (tokens.prefix, tokens.suffix, tokens.middle, *tokens.ends)
    return InfillPrompt(ids, tuple(special[name] for name in ends if name in special))
