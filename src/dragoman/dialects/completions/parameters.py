"""What becomes of every parameter of Completions."""

from __future__ import annotations

from ..shared import SHARED_HONOURED, shared_hints
from ..support import Rules, honoured, refused

DIALECT = "completions"

_HONOURED = (
    ("prompt", "a string, strings, token ids, or several lists of token ids; at most 2048 prompts"),
    ("best_of", "at least n; not with stream when it is greater"),
    ("echo", "with max_tokens 0 the prompt alone"),
    ("logprobs", "0 to 5, in the vllm profile to 20; -1 is refused"),
)

_OTHERS = (
    *refused(DIALECT, "suffix", "no engine here fills in the middle", ""),
    *refused(DIALECT, "prompt_embeds", "prompts are text or token ids"),
    *refused(DIALECT, "thinking_token_budget", "a completion has no reasoning apart from its text", -1),
)

COMPLETIONS = Rules(
    (
        *(row for name, note in (*_HONOURED, *SHARED_HONOURED) for row in honoured(DIALECT, name, note=note)),
        *shared_hints(DIALECT),
        *_OTHERS,
    )
)
