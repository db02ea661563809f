"""What becomes of every parameter of Completions."""

from __future__ import annotations

from ..shared import SHARED_HONOURED, shared_hints
from ..support import Rules, honoured, refused

DIALECT = "completions"

_HONOURED = (
    ("prompt", "a string, strings, token ids, or several lists of token ids; at most 2048 prompts"),
    ("best_of", "at least n; no streaming if greater than n"),
    ("echo", "with max_tokens 0 only the prompt is returned"),
    ("logprobs", "0 to 5, up to 20 in the vllm profile; -1 is refused"),
)

_OTHERS = (
    *refused(DIALECT, "suffix", "fill-in-the-middle is not supported", ""),
    *refused(DIALECT, "prompt_embeds", "prompts must be text or token ids"),
    *refused(DIALECT, "thinking_token_budget", "completions do not separate reasoning from text", -1),
)

COMPLETIONS = Rules(
    (
        *(row for name, note in (*_HONOURED, *SHARED_HONOURED) for row in honoured(DIALECT, name, note=note)),
        *shared_hints(DIALECT),
        *_OTHERS,
    )
)
