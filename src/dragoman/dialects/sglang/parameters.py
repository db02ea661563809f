"""The support of every parameter of SGLang's /generate and of its `sampling_params`."""

from __future__ import annotations

from ..parameter_table import ParameterTable, accept, honour, reject, warn

DIALECT, SAMPLING = "sglang", "sglang_params"

_HONOURED = (
    ("text", "one or several raw texts, without a chat template"),
    ("input_ids", "one or several prompts, used unchanged"),
    ("sampling_params", "see below; one object for all prompts"),
    ("return_logprob", ""),
    ("logprob_start_len", "-1, the default, returns the answer only"),
    ("top_logprobs_num", "0 to 20, requires return_logprob"),
    ("return_text_in_logprobs", ""),
    ("return_prompt_token_ids", ""),
    ("stream", "each event has the full text so far"),
    ("rid", "echoed as `meta_info.id`; generated if missing"),
    ("lora_path", "the name of a loaded adapter"),
    ("priority", "higher runs first"),
    ("extra_key", "cached prefixes are shared only between equal values"),
    ("model", "extension to SGLang: selects one of several models"),
)
SGLANG = ParameterTable(
    (
        *(row for name, note in _HONOURED for row in honour(DIALECT, name, note=note)),
        *accept(DIALECT, "log_metrics", "no_logs", "custom_labels", note="internal to the server"),
        *accept(DIALECT, "routing_key", "session_id", "routed_dp_rank", note="a hint for routers"),
        *accept(DIALECT, "data_parallel_rank", "modalities", note="a hint for routers"),
        *reject(DIALECT, "input_embeds", "prompts must be texts or token ids", []),
        *reject(DIALECT, "image_data", "send images to Chat Completions", []),
        *reject(DIALECT, "video_data", "send media to Chat Completions", []),
        *reject(DIALECT, "audio_data", "send media to Chat Completions", []),
        *reject(DIALECT, "token_ids_logprob", "logprobs are available only for the most likely tokens", []),
        *reject(DIALECT, "return_hidden_states", "hidden states are not returned", False),
        *reject(DIALECT, "return_routed_experts", "routed experts are not reported", False),
        *reject(DIALECT, "return_sampling_mask", "sampling masks are not returned", False),
        *reject(DIALECT, "return_entropy", "entropies are not returned", False),
        *reject(DIALECT, "return_flat_raw_top_logprobs", "flat logprobs are not supported", False),
        *reject(DIALECT, "return_flat_raw_output_top_logprobs", "flat logprobs are not supported", False),
        *reject(DIALECT, "session_params", "sessions are not supported"),
        *reject(DIALECT, "custom_logit_processor", "requests cannot contain code"),
        *reject(DIALECT, "positional_embed_overrides", "prompts must be texts or token ids"),
        *reject(DIALECT, "max_thinking_tokens", "reasoning is not separated from text for raw prompts"),
        *reject(DIALECT, "watermark", "watermarking is not supported", False),
        *reject(DIALECT, "bootstrap_host", "disaggregated prefill is not supported"),
        *reject(DIALECT, "bootstrap_port", "disaggregated prefill is not supported"),
        *reject(DIALECT, "bootstrap_room", "disaggregated prefill is not supported"),
    )
)

_PARAMS = (
    ("max_new_tokens", "128 by default, as in SGLang; null is the rest of the context"),
    ("min_new_tokens", ""),
    ("n", ""),
    ("stop", ""),
    ("stop_token_ids", ""),
    ("temperature", "0 is greedy"),
    ("top_p", ""),
    ("top_k", "-1 disables it"),
    ("min_p", ""),
    ("frequency_penalty", ""),
    ("presence_penalty", ""),
    ("repetition_penalty", ""),
    ("logit_bias", "keys are token ids, values -100 to 100"),
    ("sampling_seed", ""),
    ("ignore_eos", ""),
    ("skip_special_tokens", ""),
    ("no_stop_trim", "true includes the stop string in the text"),
    ("json_schema", "a string or an object; at most one constraint"),
    ("regex", ""),
    ("ebnf", ""),
)
SGLANG_PARAMS = ParameterTable(
    (
        *(row for name, note in _PARAMS for row in honour(SAMPLING, name, note=note)),
        *warn(SAMPLING, "stream_interval", "every token is sent immediately", 1),
        *reject(SAMPLING, "spaces_between_special_tokens", "decoding follows the tokenizer", True),
        *reject(SAMPLING, "stop_regex", "only strings and token ids are supported", []),
        *reject(SAMPLING, "structural_tag", "use json_schema, regex or ebnf"),
        *reject(SAMPLING, "beam_width", "beam search is not supported", 1),
        *reject(SAMPLING, "custom_params", "there is no plugin that uses it", {}),
        *reject(SAMPLING, "watermark", "watermarking is not supported", False),
    )
)
