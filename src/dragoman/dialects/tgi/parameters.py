"""What becomes of every parameter of TGI's and LightLLM's /generate, and of their `parameters`."""

from __future__ import annotations

from ..parameter_table import ParameterTable, accept, honour, reject

DIALECT, PARAMETERS = "tgi", "tgi_params"

_HONOURED = (
    ("inputs", "raw: no chat template is laid around it; or token ids, as in LightLLM"),
    ("parameters", "see below"),
    ("stream", "also on `/generate`; `/generate_stream` always streams"),
    ("add_special_tokens", ""),
    ("model", "not in TGI: which of several models"),
)
TGI = ParameterTable(
    (
        *(row for name, note in _HONOURED for row in honour(DIALECT, name, note=note)),
        *accept(DIALECT, "options", note="of the hub's own caches"),
        *reject(DIALECT, "multimodal_params", "send images to Chat Completions", {}),
        *reject(DIALECT, "num_beam", "there is no beam search", 1),
    )
)

_PARAMS = (
    ("max_new_tokens", "without it the rest of the context, as in TGI 3"),
    ("do_sample", "without it, and without temperature, top_k and top_p, greedy, as in TGI"),
    ("temperature", "0 is greedy"),
    ("top_p", ""),
    ("top_k", "-1 is off"),
    ("repetition_penalty", ""),
    ("frequency_penalty", "-2 to 2, as in OpenAI's dialects"),
    ("seed", ""),
    ("stop", "stays in the text, as in TGI"),
    ("best_of", "the most likely one a token; the others are not told. Not streamed when it is greater than 1"),
    ("details", "needs an engine that tells logprobs; without it a stream has them as null"),
    ("decoder_input_details", "the prompt's logprobs, as `prefill`; needs details, and not stream"),
    ("top_n_tokens", "0 to 20, needs details"),
    ("return_full_text", "false by default on every route; not with token ids"),
    ("truncate", ""),
    ("grammar", "of type json, json_schema or regex; at most one constraint"),
    ("adapter_id", "the name of a loaded adapter"),
    ("return_details", "LightLLM's: where it is said, a whole answer has LightLLM's form; not with details"),
    ("n", "LightLLM's, needs return_details, not stream"),
    ("stop_sequences", "LightLLM's name of stop: strings"),
    ("presence_penalty", "LightLLM's"),
    ("min_new_tokens", "LightLLM's"),
    ("ignore_eos", "LightLLM's"),
    ("skip_special_tokens", "LightLLM's"),
    ("add_special_tokens", "LightLLM's"),
    ("allowed_token_ids", "LightLLM's"),
    ("regular_constraint", "LightLLM's"),
    ("guided_json", "LightLLM's: a schema, as text or as an object"),
    ("guided_grammar", "LightLLM's"),
)
TGI_PARAMS = ParameterTable(
    (
        *(row for name, note in _PARAMS for row in honour(PARAMETERS, name, note=note)),
        *accept(PARAMETERS, "group_request_id", "suggested_dp_index", note="a hint for routers"),
        *reject(PARAMETERS, "typical_p", "use top_p", 1, 1.0),
        *reject(PARAMETERS, "watermark", "answers are not watermarked", False),
        *reject(PARAMETERS, "exponential_decay_length_penalty", "there is none", [1, 1], [1, 1.0]),
        *reject(PARAMETERS, "input_penalty", "which penalties count the prompt is fixed", False),
        *reject(PARAMETERS, "print_eos_token", "use skip_special_tokens=false", False),
        *reject(PARAMETERS, "add_spaces_between_special_tokens", "the tokenizer's own decoding is used", True),
        *reject(PARAMETERS, "token_healing_top_k", "there is no token healing", 0),
        *reject(PARAMETERS, "token_healing_unmerge_last_token", "there is no token healing", 0),
        *reject(PARAMETERS, "move_kv_to_decode_node", "prefill and decode are not apart here"),
    )
)
