"""What becomes of every parameter of SGLang's /generate, and of its `sampling_params`."""

from __future__ import annotations

from ..parameter_table import ParameterTable, accept, honour, reject, warn

DIALECT, SAMPLING = "sglang", "sglang_params"

_HONOURED = (
    ("text", "one or several, raw: no chat template is laid around it"),
    ("input_ids", "one prompt or several, as they are"),
    ("sampling_params", "see below; one for all prompts"),
    ("return_logprob", ""),
    ("logprob_start_len", "-1, the default, is the answer alone"),
    ("top_logprobs_num", "0 to 20, needs return_logprob"),
    ("return_text_in_logprobs", ""),
    ("return_prompt_token_ids", ""),
    ("stream", "each event has the whole text so far"),
    ("rid", "echoed as `meta_info.id`; one is made where there is none"),
    ("lora_path", "the name of a loaded adapter"),
    ("priority", "higher runs first"),
    ("extra_key", "prefixes are shared only among equal ones"),
    ("model", "not in SGLang: which of several models"),
)
SGLANG = ParameterTable(
    (
        *(row for name, note in _HONOURED for row in honour(DIALECT, name, note=note)),
        *accept(DIALECT, "log_metrics", "no_logs", "custom_labels", note="of the server's own bookkeeping"),
        *accept(DIALECT, "routing_key", "session_id", "routed_dp_rank", note="a hint for routers"),
        *accept(DIALECT, "data_parallel_rank", "modalities", note="a hint for routers"),
        *reject(DIALECT, "input_embeds", "prompts are texts or token ids", []),
        *reject(DIALECT, "image_data", "send images to Chat Completions", []),
        *reject(DIALECT, "video_data", "send media to Chat Completions", []),
        *reject(DIALECT, "audio_data", "send media to Chat Completions", []),
        *reject(DIALECT, "token_ids_logprob", "logprobs are those of the most likely tokens", []),
        *reject(DIALECT, "return_hidden_states", "hidden states are not returned", False),
        *reject(DIALECT, "return_routed_experts", "routed experts are not reported", False),
        *reject(DIALECT, "return_sampling_mask", "sampling supports are not returned", False),
        *reject(DIALECT, "return_entropy", "entropies are not returned", False),
        *reject(DIALECT, "return_flat_raw_top_logprobs", "logprobs are lists", False),
        *reject(DIALECT, "return_flat_raw_output_top_logprobs", "logprobs are lists", False),
        *reject(DIALECT, "session_params", "there are no sessions"),
        *reject(DIALECT, "custom_logit_processor", "code is not taken from requests"),
        *reject(DIALECT, "positional_embed_overrides", "prompts are texts or token ids"),
        *reject(DIALECT, "max_thinking_tokens", "a raw prompt has no reasoning apart from its text"),
        *reject(DIALECT, "watermark", "answers are not watermarked", False),
        *reject(DIALECT, "bootstrap_host", "prefill and decode are not apart here"),
        *reject(DIALECT, "bootstrap_port", "prefill and decode are not apart here"),
        *reject(DIALECT, "bootstrap_room", "prefill and decode are not apart here"),
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
    ("top_k", "-1 is off"),
    ("min_p", ""),
    ("frequency_penalty", ""),
    ("presence_penalty", ""),
    ("repetition_penalty", ""),
    ("logit_bias", "keys are token ids, values -100 to 100"),
    ("sampling_seed", ""),
    ("ignore_eos", ""),
    ("skip_special_tokens", ""),
    ("no_stop_trim", "true keeps a stop string in the text"),
    ("json_schema", "as text or as an object; at most one constraint"),
    ("regex", ""),
    ("ebnf", ""),
)
SGLANG_PARAMS = ParameterTable(
    (
        *(row for name, note in _PARAMS for row in honour(SAMPLING, name, note=note)),
        *warn(SAMPLING, "stream_interval", "every token is sent as soon as it is there", 1),
        *reject(SAMPLING, "spaces_between_special_tokens", "the tokenizer's own decoding is used", True),
        *reject(SAMPLING, "stop_regex", "stops are strings and token ids", []),
        *reject(SAMPLING, "structural_tag", "use json_schema, regex or ebnf"),
        *reject(SAMPLING, "beam_width", "there is no beam search", 1),
        *reject(SAMPLING, "custom_params", "there is no plugin to give them to", {}),
        *reject(SAMPLING, "watermark", "answers are not watermarked", False),
    )
)
