"""What becomes of every parameter of Completions."""

from __future__ import annotations

from ..parameter_table import ParameterTable, honour, reject
from ..shared_parameters import SHARED_HONOURED, build_shared_rows

DIALECT = "completions"

_HONOURED = (
    ("prompt", "a string, strings, token ids, or several lists of token ids; at most 2048 prompts"),
    ("best_of", "at least n; not with stream when it is greater"),
    ("echo", "with max_tokens 0 the prompt alone"),
    ("logprobs", "0 to 5, in the vllm profile to 20; -1 is refused"),
)

_UNSUPPORTED = (
    *reject(DIALECT, "suffix", "no engine here fills in the middle", ""),
    *reject(DIALECT, "prompt_embeds", "prompts are text or token ids"),
    *reject(DIALECT, "thinking_token_budget", "a completion has no reasoning apart from its text", -1),
)

COMPLETIONS = ParameterTable(
    (
        *(row for name, note in (*_HONOURED, *SHARED_HONOURED) for row in honour(DIALECT, name, note=note)),
        *build_shared_rows(DIALECT),
        *_UNSUPPORTED,
    )
)
