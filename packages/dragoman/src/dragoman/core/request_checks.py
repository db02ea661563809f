"""Checks of a request that several token engines share."""

from __future__ import annotations

from collections.abc import Collection

from .errors import ContextTooLong, RequestError, Unsupported
from .request import Conversation
from .token_engine import TokenRequest

MAX_LISTED_IDS = 10
"""Maximum invalid token ids that an error lists."""


def check_prompt(ids: tuple[int, ...], vocab_size: int, max_model_len: int) -> None:
    """Check that a prompt is in the vocabulary and leaves space for at least one token.

    Raises:
        RequestError: the prompt is empty, or an id is not in the vocabulary.
        ContextTooLong: the prompt fills the context.
    """
    if not ids:
        raise RequestError("The prompt is empty.", param="prompt")
    if len(ids) >= max_model_len:
        raise ContextTooLong(limit=max_model_len, prompt=len(ids), param="prompt")
    check_ids(ids, vocab_size, "prompt")


def check_ids(ids: Collection[int], vocab_size: int, param: str) -> None:
    """Raise RequestError if ids are not in the vocabulary. The error lists the first of
    them, each once.
    """
    # Two passes in C for the common case, instead of a Python loop over a long prompt.
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    unknown = list(dict.fromkeys(id for id in ids if not 0 <= id < vocab_size))
    listed = ", ".join(map(str, unknown[:MAX_LISTED_IDS]))
    num_unlisted = len(unknown) - MAX_LISTED_IDS
    more = f" and {num_unlisted} more" if num_unlisted > 0 else ""
    subject = f"Token id {listed} is" if len(unknown) == 1 else f"Token ids {listed}{more} are"
    raise RequestError(f"{subject} not in this model's vocabulary of {vocab_size}.", param=param)


def check_unenforced_tool_choice(request: TokenRequest) -> None:
    """Raise Unsupported for a tool choice that an engine without constrained decoding
    cannot enforce.
    """
    prompt = None if request.origin is None else request.origin.prompt
    if (
        not isinstance(prompt, Conversation)
        or not prompt.tools
        or prompt.tool_choice.mode == "none"
    ):
        return
    if prompt.tool_choice.mode != "auto":
        raise Unsupported(
            "This engine cannot enforce a tool call; use `auto` or `none`.", param="tool_choice"
        )
    if not prompt.parallel_tool_calls:
        raise Unsupported(
            "This engine cannot limit the number of tool calls.", param="parallel_tool_calls"
        )
