"""The support of every parameter of Completions."""

from __future__ import annotations

from ..parameter_table import ParameterTable, honour, reject
from ..shared_parameters import SHARED_HONOURED, build_shared_rows

DIALECT = "completions"

_HONOURED = (
    ("prompt", "a string, strings, token ids, or several lists of token ids; at most 2048 prompts"),
    ("best_of", "at least n; no streaming if greater than n"),
    ("echo", "with max_tokens 0 only the prompt is returned"),
    ("logprobs", "0 to 5, up to 20 in the vllm profile; -1 is refused"),
)

_UNSUPPORTED = (
    *reject(DIALECT, "suffix", "fill-in-the-middle is not supported", ""),
    *reject(DIALECT, "prompt_embeds", "prompts must be text or token ids"),
    *reject(DIALECT, "thinking_token_budget", "completions do not separate reasoning from text", -1),
)

COMPLETIONS = ParameterTable(
    (
        *(row for name, note in (*_HONOURED, *SHARED_HONOURED) for row in honour(DIALECT, name, note=note)),
        *build_shared_rows(DIALECT),
        *_UNSUPPORTED,
    )
)
