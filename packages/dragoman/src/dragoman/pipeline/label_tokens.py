"""The tokens with which an answer can begin, such as the letters of a question's
options.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.capabilities import Capabilities, Feature
from ..core.errors import Unsupported
from ..core.request import GenerateRequest
from ..core.tokenizer import Tokenizer

MAX_REPORTED = 20
"""Tokens to request of an engine that reports only the most likely ones: the limit of
OpenAI's API, and of most servers.
"""
_MAX_TAIL = 32
"""Tokens before an answer that can change how its first characters are tokenized."""


def find_label_tokens(
    tokenizer: Tokenizer, prompt: Sequence[int], labels: Sequence[str]
) -> tuple[int, ...]:
    """Return the token that each label is as the start of the answer to a prompt.

    Raises:
        Unsupported: a label is not one token there, or two labels are the same.
    """
    tail = list(prompt[-_MAX_TAIL:])
    # Nothing merges with a control token.
    start = max((i + 1 for i, id in enumerate(tail) if tokenizer.is_special(id)), default=0)
    text = tokenizer.decode(tail[start:])
    before = tokenizer.encode(text, special=False)
    ids: list[int] = []
    for label in labels:
        extended = tokenizer.encode(text + label, special=False)
        if extended[:-1] != before or extended[-1] in ids:
            raise Unsupported(
                f"This model's tokenizer has no token of its own for {label!r} at the start of an "
                "answer, so its probability cannot be read.",
                param="model",
            )
        ids.append(extended[-1])
    return tuple(ids)


def replace_label_texts(
    request: GenerateRequest, capabilities: Capabilities, max_logprobs: int
) -> tuple[GenerateRequest, tuple[str, ...]]:
    """Request the most likely tokens instead of labels, of an engine that cannot report
    the logprobs of given tokens. Returns the request, and warnings.

    max_logprobs: the server's limit.
    """
    if not request.logprob_texts or Feature.LOGPROB_TOKEN_IDS in capabilities.features:
        return request, ()
    n_tokens = min(capabilities.max_logprobs, max_logprobs, MAX_REPORTED)
    warning = (
        f"top_logprobs: this model's engine reports only the {n_tokens} most likely tokens; "
        "options that are not among them count as impossible"
    )
    return msgspec.structs.replace(request, logprobs=n_tokens, logprob_texts=()), (warning,)
