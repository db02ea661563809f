"""What becomes of every parameter of /inference/v1/generate, and of its `sampling_params`."""

from __future__ import annotations

from ..fields import DecodingFields
from ..parameter_table import ParameterTable, accept, honour, reject
from ..shared_parameters import SHARED_HONOURED

DIALECT, SAMPLING = "generate", "sampling_params"

_NOTES = dict(SHARED_HONOURED)
_HONOURED = (
    ("token_ids", "the prompt, as it is"),
    ("sampling_params", "see below; without it the model's own defaults"),
    ("model", "optional where the server has a default model"),
    ("stream", ""),
    ("stream_options", "include_usage"),
    ("request_id", "echoed; one is made where there is none"),
    ("cache_salt", ""),
    ("priority", "lower runs first"),
    ("kv_transfer_params", "for engines that say they honour it"),
)
GENERATE = ParameterTable(
    (
        *(row for name, note in _HONOURED for row in honour(DIALECT, name, note=note)),
        *reject(DIALECT, "features", "only tokens come in", {}),
    )
)

_PARAMS = (
    ("n", ""),
    ("max_tokens", "16 by default, as in vLLM; -1 is the rest of the context"),
    ("stop", "found in the text that the tokens would be"),
    ("logprobs", "0 to 20; -1 is refused"),
    ("prompt_logprobs", "not with stream; -1 is refused"),
)
SAMPLING_PARAMS = ParameterTable(
    (
        *(row for name, note in _PARAMS for row in honour(SAMPLING, name, note=note)),
        *(row for name in DecodingFields.__struct_fields__ for row in honour(SAMPLING, name, note=_NOTES[name])),
        *accept(SAMPLING, "output_kind", "detokenize", "skip_clone", note="of vLLM's own innards"),
        *accept(SAMPLING, "flat_logprobs", "skip_reading_prefix_cache", note="of vLLM's own innards"),
        *accept(SAMPLING, "spaces_between_special_tokens", note="no text comes out"),
        *reject(SAMPLING, "logits_processors", "code is not taken from requests", []),
        *reject(SAMPLING, "extra_args", "there is no plugin to give them to", {}),
        *reject(SAMPLING, "thinking_token_budget", "a prompt of tokens has no reasoning apart from its text", -1),
        *reject(SAMPLING, "repetition_detection", "there is none"),
        *reject(SAMPLING, "logprob_token_ids", "logprobs are those of the most likely tokens", []),
        *reject(SAMPLING, "best_of", "use n", 1),
    )
)
