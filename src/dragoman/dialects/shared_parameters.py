"""The support of the parameters that the generating dialects share: those of `fields`, and further ones of vLLM."""

from __future__ import annotations

from .parameter_table import ParameterSupport, accept, reject, warn

SHARED_HONOURED = (
    ("model", "optional if the server has a default model"),
    ("stream", ""),
    ("stream_options", "include_usage, continuous_usage_stats; include_obfuscation: true is refused"),
    ("n", ""),
    ("metadata", "validated: at most 16 keys of 64 characters with values of 512 characters; has no effect"),
    ("service_tier", "there is one tier, reported as `default`; other values give a warning"),
    ("temperature", "0 to 2; 0 is greedy"),
    ("top_p", ""),
    ("top_k", "0 and -1 disable it"),
    ("min_p", ""),
    ("presence_penalty", ""),
    ("frequency_penalty", ""),
    ("repetition_penalty", ""),
    ("seed", "a signed 64-bit integer"),
    ("logit_bias", "keys are token ids, values -100 to 100"),
    ("allowed_token_ids", ""),
    ("bad_words", ""),
    ("max_tokens", "-1 and null are the rest of the context"),
    ("min_tokens", ""),
    ("stop", "a string or a list; maximum count set by the server"),
    ("stop_token_ids", ""),
    ("include_stop_str_in_output", ""),
    ("ignore_eos", ""),
    ("truncate_prompt_tokens", "keeps only the last N tokens; -1 is the model's limit"),
    ("response_format", "text, json_object, json_schema; at most one constraint per request"),
    (
        "structured_outputs",
        "json, regex, choice, grammar, json_object; structural_tag is refused. With close_at_limit (ours; may stand "
        "alone), the last tokens within the limit end the answer legally",
    ),
    ("guided_json", "as structured_outputs.json"),
    ("guided_regex", "as structured_outputs.regex"),
    ("guided_choice", "as structured_outputs.choice"),
    ("guided_grammar", "as structured_outputs.grammar"),
    ("prompt_logprobs", "not with stream; -1 is refused"),
    ("logprob_token_ids", "with logprobs: their alternatives are these tokens and the sampled one; at most 1024"),
    ("return_token_ids", "in both profiles; logprobs then list every token"),
    ("return_tokens_as_token_ids", ""),
    ("return_weight_versions", "null if the engine does not report weight versions"),
    ("skip_special_tokens", ""),
    (
        "add_special_tokens",
        "special tokens that the tokenizer adds to a text, in addition to the chat template's",
    ),
    ("priority", "lower runs first"),
    ("request_id", "becomes the suffix of the response id"),
    ("cache_salt", ""),
    (
        "kv_transfer_params",
        "for engines that support it; prompt_token_ids are used as the ids of a conversation",
    ),
    ("vllm_xargs", "for engines that support it"),
    ("session_id", "a hint for routers and for vLLM, also as the header x-session-id"),
)


def build_shared_rows(dialect: str) -> tuple[ParameterSupport, ...]:
    """Fields of both endpoints that are not in the struct."""
    return (
        *accept(dialect, "user", "safety_identifier", note="identifies the end user; has no effect"),
        *accept(dialect, "guided_decoding_backend", "guided_whitespace_pattern", note="there is only one backend"),
        *warn(dialect, "stream_interval", "every token is sent immediately", 1),
        *reject(dialect, "use_beam_search", "beam search is not supported", False),
        *reject(dialect, "length_penalty", "beam search is not supported", 1.0, 1),
        *reject(dialect, "early_stopping", "beam search is not supported", False),
        *reject(dialect, "watermarking", "watermarking is not supported", False),
        *reject(dialect, "spaces_between_special_tokens", "decoding follows the tokenizer", True),
        *reject(dialect, "truncation_side", "prompts are truncated on the left", "left"),
        *reject(dialect, "repetition_detection", "not supported"),
        *reject(dialect, "routed_experts_prompt_start", "routed experts are not reported", 0),
        *reject(dialect, "return_token_offsets", "offsets are not reported", False),
        *reject(dialect, "mm_payload", "media payloads are not returned", "tensors"),
        *reject(dialect, "return_mm_kwargs", "media payloads are not returned", False),
        *reject(dialect, "ec_transfer_params", "encoder cache transfer is not supported"),
    )
