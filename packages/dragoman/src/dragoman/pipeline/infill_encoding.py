"""Encoding of a request with a suffix, for models that fill in the middle."""

from __future__ import annotations

from ..core.errors import RequestError, Unsupported
from ..core.request import GenerateRequest
from ..prompts.fill_in_the_middle import InfillPrompt, build_infill_prompt, find_infill_tokens
from .engine_backends import TokenBackend
from .request_queue import QueueShare


def build_no_infill_error() -> Unsupported:
    """Build the error of a model that cannot fill in the middle."""
    return Unsupported(
        "This model does not support `suffix`: it has no tokens for fill-in-the-middle.",
        param="suffix",
    )


async def encode_infill(
    backend: TokenBackend, request: GenerateRequest, queue_share: QueueShare
) -> InfillPrompt:
    """Encode the prompt and the suffix of a request that has one.

    Raises:
        Unsupported: the model has no tokens for it.
        RequestError: the request cannot have a suffix.
    """
    tokenizer = backend.tokenizer
    tokens = find_infill_tokens(tokenizer.special_tokens)
    prompt = request.prompt
    suffix = request.suffix
    if tokens is None:
        raise build_no_infill_error()
    if suffix is None or not isinstance(prompt, str):
        raise RequestError("`suffix` needs a prompt that is a text.", param="suffix")
    if request.limits.truncate_prompt is not None:
        # It would cut the token off that begins the prompt.
        raise RequestError(
            "`suffix` cannot be combined with `truncate_prompt_tokens`.", param="suffix"
        )
    return await queue_share.run_in_thread(
        lambda: build_infill_prompt(
            tokenizer, tokens, prompt, suffix, add_special_tokens=request.add_special_tokens
        )
    )
