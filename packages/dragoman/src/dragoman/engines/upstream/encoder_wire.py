"""What the requests for embeddings and for scores, and their responses, share."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from ...core.errors import EngineError, Unsupported

T = TypeVar("T")


class EncoderUsage(Struct, frozen=True):
    prompt_tokens: int | None = None
    total_tokens: int | None = None


def count_tokens(usage: EncoderUsage) -> int:
    return usage.prompt_tokens or usage.total_tokens or 0


def check_no_truncation(truncate: int | None) -> None:
    """Raise Unsupported for a truncation to a number of tokens.

    -1 passes: it only permits truncation to the context, and an upstream that does not
    truncate rejects longer texts.
    """
    if truncate is not None and truncate >= 0:
        raise Unsupported(
            "The upstream does not truncate to a number of tokens.", param="truncate_prompt_tokens"
        )


def decode_response(body: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise EngineError("The upstream sent an invalid response.") from None
