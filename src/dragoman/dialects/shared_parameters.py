"""What becomes of the parameters that the generating dialects have in common: those of `fields`, and vLLM's others."""

from __future__ import annotations

from .parameter_table import ParameterSupport, accept, reject, warn

SHARED_HONOURED = (
    ("model", "optional where the server has a default model"),
    ("stream", ""),
    ("stream_options", "include_usage, continuous_usage_stats; include_obfuscation: true is refused"),
    ("n", ""),
    ("metadata", "checked: at most 16 keys of 64 characters with values of 512; it changes nothing"),
    ("service_tier", "there is one tier: the answer says `default`, and a warning if another one was asked for"),
    ("temperature", "0 to 2; 0 is greedy"),
    ("top_p", ""),
    ("top_k", "0 and -1 are off"),
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
    ("stop", "a string or a list; how many is a setting of the server"),
    ("stop_token_ids", ""),
    ("include_stop_str_in_output", ""),
    ("ignore_eos", ""),
    ("truncate_prompt_tokens", "keeps the last so many; -1 what fits"),
    ("response_format", "text, json_object, json_schema; at most one constraint a request"),
    ("structured_outputs", "json, regex, choice, grammar, json_object; structural_tag is refused"),
    ("guided_json", "as structured_outputs.json"),
    ("guided_regex", "as structured_outputs.regex"),
    ("guided_choice", "as structured_outputs.choice"),
    ("guided_grammar", "as structured_outputs.grammar"),
    ("prompt_logprobs", "not with stream; -1 is refused"),
    ("return_token_ids", "in both profiles"),
    ("return_tokens_as_token_ids", ""),
    ("return_weight_versions", "null where the engine does not tell which weights sampled"),
    ("skip_special_tokens", ""),
    (
        "add_special_tokens",
        "what the tokenizer itself puts around a text; on top of the chat template where there is one",
    ),
    ("priority", "lower runs first"),
    ("request_id", "becomes the end of the answer's id"),
    ("cache_salt", ""),
    ("kv_transfer_params", "for engines that say they honour it"),
    ("vllm_xargs", "for engines that say they honour it"),
)


def build_shared_rows(dialect: str) -> tuple[ParameterSupport, ...]:
    """Fields of both endpoints that the struct does not have."""
    return (
        *accept(dialect, "user", "safety_identifier", note="identifies the end user; nothing here depends on it"),
        *accept(dialect, "session_id", note="a hint for routers"),
        *accept(dialect, "guided_decoding_backend", "guided_whitespace_pattern", note="there is one backend here"),
        *warn(dialect, "stream_interval", "every token is sent as soon as it is there", 1),
        *reject(dialect, "use_beam_search", "there is no beam search", False),
        *reject(dialect, "length_penalty", "there is no beam search", 1.0, 1),
        *reject(dialect, "early_stopping", "there is no beam search", False),
        *reject(dialect, "watermarking", "answers are not watermarked", False),
        *reject(dialect, "spaces_between_special_tokens", "the tokenizer's own decoding is used", True),
        *reject(dialect, "truncation_side", "prompts are cut at the left", "left"),
        *reject(dialect, "logprob_token_ids", "logprobs are those of the most likely tokens", []),
        *reject(dialect, "repetition_detection", "there is none"),
        *reject(dialect, "routed_experts_prompt_start", "routed experts are not reported", 0),
        *reject(dialect, "return_token_offsets", "offsets are not reported", False),
        *reject(dialect, "mm_payload", "media payloads are not returned", "tensors"),
        *reject(dialect, "return_mm_kwargs", "media payloads are not returned", False),
        *reject(dialect, "ec_transfer_params", "there is no encoder cache to transfer"),
    )
