"""What becomes of every parameter of SGLang's /generate, and of its `sampling_params`."""

from __future__ import annotations

from ..support import Rules, accepted, honoured, refused, warned

DIALECT, SAMPLING = "sglang", "sglang_params"

_OWN = (
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
SGLANG = Rules(
    (
        *(row for name, note in _OWN for row in honoured(DIALECT, name, note=note)),
        *accepted(DIALECT, "log_metrics", "no_logs", "custom_labels", note="internal to the server"),
        *accepted(DIALECT, "routing_key", "session_id", "routed_dp_rank", note="a hint for routers"),
        *accepted(DIALECT, "data_parallel_rank", "modalities", note="a hint for routers"),
        *refused(DIALECT, "input_embeds", "prompts must be texts or token ids", []),
        *refused(DIALECT, "image_data", "send images to Chat Completions", []),
        *refused(DIALECT, "video_data", "send media to Chat Completions", []),
        *refused(DIALECT, "audio_data", "send media to Chat Completions", []),
        *refused(DIALECT, "token_ids_logprob", "logprobs are available only for the most likely tokens", []),
        *refused(DIALECT, "return_hidden_states", "hidden states are not returned", False),
        *refused(DIALECT, "return_routed_experts", "routed experts are not reported", False),
        *refused(DIALECT, "return_sampling_mask", "sampling masks are not returned", False),
        *refused(DIALECT, "return_entropy", "entropies are not returned", False),
        *refused(DIALECT, "return_flat_raw_top_logprobs", "flat logprobs are not supported", False),
        *refused(DIALECT, "return_flat_raw_output_top_logprobs", "flat logprobs are not supported", False),
        *refused(DIALECT, "session_params", "sessions are not supported"),
        *refused(DIALECT, "custom_logit_processor", "requests cannot contain code"),
        *refused(DIALECT, "positional_embed_overrides", "prompts must be texts or token ids"),
        *refused(DIALECT, "max_thinking_tokens", "reasoning is not separated from text for raw prompts"),
        *refused(DIALECT, "watermark", "watermarking is not supported", False),
        *refused(DIALECT, "bootstrap_host", "disaggregated prefill is not supported"),
        *refused(DIALECT, "bootstrap_port", "disaggregated prefill is not supported"),
        *refused(DIALECT, "bootstrap_room", "disaggregated prefill is not supported"),
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
SGLANG_PARAMS = Rules(
    (
        *(row for name, note in _PARAMS for row in honoured(SAMPLING, name, note=note)),
        *warned(SAMPLING, "stream_interval", "every token is sent immediately", 1),
        *refused(SAMPLING, "spaces_between_special_tokens", "decoding follows the tokenizer", True),
        *refused(SAMPLING, "stop_regex", "only strings and token ids are supported", []),
        *refused(SAMPLING, "structural_tag", "use json_schema, regex or ebnf"),
        *refused(SAMPLING, "beam_width", "beam search is not supported", 1),
        *refused(SAMPLING, "custom_params", "there is no plugin that uses it", {}),
        *refused(SAMPLING, "watermark", "watermarking is not supported", False),
    )
)
