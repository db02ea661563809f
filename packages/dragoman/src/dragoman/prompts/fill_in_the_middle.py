"""Prompts for models that were trained to write the text between a prefix and a suffix."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from .hf_tokenizer import HfTokenizer


class InfillTokens(Struct, frozen=True):
    """The control tokens of a model family for fill-in-the-middle.

    prefix, suffix, middle: tokens before these parts of the prompt.
    ends: other tokens that end an answer.
    """

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
    InfillTokens(
        "<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<file_sep>", "<repo_name>")
    ),
    InfillTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>",)),
    # DeepSeek-Coder: the "hole" token is where the suffix begins.
    InfillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # Seed-Coder
    InfillTokens("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
    # Code Llama
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
)


class InfillPrompt(Struct, frozen=True):
    """A prompt for the text between two others.

    ids: the prompt.
    stop_ids: tokens besides end-of-sequence that end the answer.
    """

    ids: tuple[int, ...]
    stop_ids: tuple[int, ...]


def find_infill_tokens(special_tokens: Mapping[str, int]) -> InfillTokens | None:
    """Return the first family whose three tokens are in the vocabulary; None if there
    is none.
    """
    return next(
        (
            family
            for family in INFILL_FAMILIES
            if all(name in special_tokens for name in (family.prefix, family.suffix, family.middle))
        ),
        None,
    )


def build_infill_prompt(
    tokenizer: HfTokenizer,
    tokens: InfillTokens,
    prefix: str,
    suffix: str,
    *,
    add_special_tokens: bool = True,
) -> InfillPrompt:
    """Build the prompt. Names of control tokens in the texts are plain text.

    add_special_tokens: begin with the tokens that begin any text, such as BOS.
    """
    special = tokenizer.special_tokens
    ids = (
        *(tokenizer.wrapping.prefix if add_special_tokens else ()),
        special[tokens.prefix],
        *tokenizer.encode(prefix, special=False),
        special[tokens.suffix],
        *tokenizer.encode(suffix, special=False),
        special[tokens.middle],
    )
    ends = (tokens.prefix, tokens.suffix, tokens.middle, *tokens.ends)
    return InfillPrompt(ids, tuple(special[name] for name in ends if name in special))
