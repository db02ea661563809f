"""The struct of a Completions body, with the support of every parameter."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ..bounds import Logprobs, TokenId
from ..generation_fields import (
    GenerationFields,
)
from ..json_body import JsonBody
from ..parameter_table import SHARED_ROWS, Note, ParameterTable, reject


class CompletionsPromptFields(Struct, frozen=True, kw_only=True):
    """The fields whose values differ from one request to the next.

    prompt: a text, texts, one prompt's token ids, or several prompts' token ids.
    """

    prompt: Annotated[
        str | list[str | TokenId | list[TokenId]] | None,
        Note("a string, strings, token ids, or several lists of token ids; at most 2048 prompts"),
    ] = None
    suffix: Annotated[
        str | None,
        Note("rejected where the model has no tokens for fill-in-the-middle, and with echo"),
    ] = None


class CompletionsBody(GenerationFields, frozen=True, kw_only=True):
    """The other fields of a Completions body."""

    best_of: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None, Note("at least n; no streaming if greater than n")
    ] = None
    echo: Annotated[bool | None, Note("with max_tokens 0 only the prompt is returned")] = None
    logprobs: Annotated[
        Logprobs | None, Note("0 to 5, up to 20 in the vllm profile; -1 is refused")
    ] = None


_UNSUPPORTED = (
    *reject("prompt_embeds", "prompts must be text or token ids"),
    *reject("thinking_token_budget", "completions do not separate reasoning from text", -1),
)


COMPLETIONS = ParameterTable(
    "completions",
    (CompletionsPromptFields, CompletionsBody),
    (
        *SHARED_ROWS,
        *_UNSUPPORTED,
    ),
)


COMPLETION_REQUEST = JsonBody(
    "CompletionRequest",
    (CompletionsPromptFields, CompletionsBody),
    COMPLETIONS,
    example={"prompt": "Once upon a time", "max_tokens": 8},
)
