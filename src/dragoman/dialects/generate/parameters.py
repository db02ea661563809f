"""What becomes of every parameter of /inference/v1/generate, and of its `sampling_params`."""

from __future__ import annotations

from ..fields import Decoding
from ..shared import SHARED_HONOURED
from ..support import Rules, accepted, honoured, refused

DIALECT, SAMPLING = "generate", "sampling_params"

_NOTES = dict(SHARED_HONOURED)
_OWN = (
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
GENERATE = Rules(
    (
        *(row for name, note in _OWN for row in honoured(DIALECT, name, note=note)),
        *refused(DIALECT, "features", "only token input is supported", {}),
    )
)

_PARAMS = (
    ("n", ""),
    ("max_tokens", "16 by default, as in vLLM; -1 is the rest of the context"),
    ("stop", "matched against the decoded text"),
    ("logprobs", "0 to 20; -1 is refused"),
    ("prompt_logprobs", "not with stream; -1 is refused"),
)
SAMPLING_PARAMS = Rules(
    (
        *(row for name, note in _PARAMS for row in honoured(SAMPLING, name, note=note)),
        *(row for name in Decoding.__struct_fields__ for row in honoured(SAMPLING, name, note=_NOTES[name])),
        *accepted(SAMPLING, "output_kind", "detokenize", "skip_clone", note="internal to vLLM"),
        *accepted(SAMPLING, "flat_logprobs", "skip_reading_prefix_cache", note="internal to vLLM"),
        *accepted(SAMPLING, "spaces_between_special_tokens", note="there is no text output"),
        *refused(SAMPLING, "logits_processors", "requests cannot contain code", []),
        *refused(SAMPLING, "extra_args", "there is no plugin that uses it", {}),
        *refused(SAMPLING, "thinking_token_budget", "reasoning is not separated from text for token prompts", -1),
        *refused(SAMPLING, "repetition_detection", "not supported"),
        *refused(SAMPLING, "logprob_token_ids", "logprobs are available only for the most likely tokens", []),
        *refused(SAMPLING, "best_of", "use n", 1),
    )
)
