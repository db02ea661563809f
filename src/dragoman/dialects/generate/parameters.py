"""The support of every parameter of /inference/v1/generate and of its `sampling_params`."""

from __future__ import annotations

from ..fields import DecodingFields
from ..parameter_table import ParameterTable, accept, honour, reject
from ..shared_parameters import SHARED_HONOURED

DIALECT, SAMPLING = "generate", "sampling_params"

_NOTES = dict(SHARED_HONOURED)
_HONOURED = (
    ("token_ids", "the prompt, used unchanged"),
    ("sampling_params", "see below; the default is the model's own"),
    ("model", "optional if the server has a default model"),
    ("stream", ""),
    ("stream_options", "include_usage"),
    ("request_id", "echoed; generated if missing"),
    ("cache_salt", ""),
    ("priority", "lower runs first"),
    ("kv_transfer_params", "for engines that support it"),
)
GENERATE = ParameterTable(
    (
        *(row for name, note in _HONOURED for row in honour(DIALECT, name, note=note)),
        *reject(DIALECT, "features", "only token input is supported", {}),
    )
)

_PARAMS = (
    ("n", ""),
    ("max_tokens", "16 by default, as in vLLM; -1 is the rest of the context"),
    ("stop", "matched against the decoded text"),
    ("logprobs", "0 to 20; -1 is refused"),
    ("prompt_logprobs", "not with stream; -1 is refused"),
)
SAMPLING_PARAMS = ParameterTable(
    (
        *(row for name, note in _PARAMS for row in honour(SAMPLING, name, note=note)),
        *(row for name in DecodingFields.__struct_fields__ for row in honour(SAMPLING, name, note=_NOTES[name])),
        *accept(SAMPLING, "output_kind", "detokenize", "skip_clone", note="internal to vLLM"),
        *accept(SAMPLING, "flat_logprobs", "skip_reading_prefix_cache", note="internal to vLLM"),
        *accept(SAMPLING, "spaces_between_special_tokens", note="there is no text output"),
        *reject(SAMPLING, "logits_processors", "requests cannot contain code", []),
        *reject(SAMPLING, "extra_args", "there is no plugin that uses it", {}),
        *reject(SAMPLING, "thinking_token_budget", "reasoning is not separated from text for token prompts", -1),
        *reject(SAMPLING, "repetition_detection", "not supported"),
        *reject(SAMPLING, "logprob_token_ids", "logprobs are available only for the most likely tokens", []),
        *reject(SAMPLING, "best_of", "use n", 1),
    )
)
