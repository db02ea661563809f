"""The support of every parameter of TGI's and LightLLM's /generate and of their `parameters`."""

from __future__ import annotations

from ..parameter_table import ParameterTable, accept, honour, reject

DIALECT, PARAMETERS = "tgi", "tgi_params"

_HONOURED = (
    ("inputs", "raw text, without a chat template; or token ids, as in LightLLM"),
    ("parameters", "see below"),
    ("stream", "also on `/generate`; `/generate_stream` always streams"),
    ("add_special_tokens", ""),
    ("model", "extension to TGI: selects one of several models"),
)
TGI = ParameterTable(
    (
        *(row for name, note in _HONOURED for row in honour(DIALECT, name, note=note)),
        *accept(DIALECT, "options", note="for the hub's caches"),
        *reject(DIALECT, "multimodal_params", "send images to Chat Completions", {}),
        *reject(DIALECT, "num_beam", "beam search is not supported", 1),
    )
)

_PARAMS = (
    ("max_new_tokens", "the default is the rest of the context, as in TGI 3"),
    ("do_sample", "greedy without it, temperature, top_k and top_p, as in TGI"),
    ("temperature", "0 is greedy"),
    ("top_p", ""),
    ("top_k", "-1 disables it"),
    ("repetition_penalty", ""),
    ("frequency_penalty", "-2 to 2, as in OpenAI's dialects"),
    ("seed", ""),
    ("stop", "stays in the text, as in TGI"),
    ("best_of", "returns the candidate with the highest likelihood per token; no streaming if greater than 1"),
    ("details", "requires an engine with logprobs; without it logprobs in a stream are null"),
    ("decoder_input_details", "logprobs of the prompt, as `prefill`; requires details, not with stream"),
    ("top_n_tokens", "0 to 20, requires details"),
    ("return_full_text", "false by default on every route; not with token ids"),
    ("truncate", ""),
    ("grammar", "of type json, json_schema or regex; at most one constraint"),
    ("adapter_id", "the name of a loaded adapter"),
    ("return_details", "LightLLM's: if present, a non-streamed answer has LightLLM's format; not with details"),
    ("n", "LightLLM's; requires return_details, not with stream"),
    ("stop_sequences", "LightLLM's name for stop: strings"),
    ("presence_penalty", "LightLLM's"),
    ("min_new_tokens", "LightLLM's"),
    ("ignore_eos", "LightLLM's"),
    ("skip_special_tokens", "LightLLM's"),
    ("add_special_tokens", "LightLLM's"),
    ("allowed_token_ids", "LightLLM's"),
    ("regular_constraint", "LightLLM's"),
    ("guided_json", "LightLLM's: a schema, a string or an object"),
    ("guided_grammar", "LightLLM's"),
)
TGI_PARAMS = ParameterTable(
    (
        *(row for name, note in _PARAMS for row in honour(PARAMETERS, name, note=note)),
        *accept(PARAMETERS, "group_request_id", "suggested_dp_index", note="a hint for routers"),
        *reject(PARAMETERS, "typical_p", "use top_p", 1, 1.0),
        *reject(PARAMETERS, "watermark", "watermarking is not supported", False),
        *reject(PARAMETERS, "exponential_decay_length_penalty", "not supported", [1, 1], [1, 1.0]),
        *reject(PARAMETERS, "input_penalty", "penalties on the prompt cannot be configured", False),
        *reject(PARAMETERS, "print_eos_token", "use skip_special_tokens=false", False),
        *reject(PARAMETERS, "add_spaces_between_special_tokens", "decoding follows the tokenizer", True),
        *reject(PARAMETERS, "token_healing_top_k", "token healing is not supported", 0),
        *reject(PARAMETERS, "token_healing_unmerge_last_token", "token healing is not supported", 0),
        *reject(PARAMETERS, "move_kv_to_decode_node", "disaggregated prefill is not supported"),
    )
)
