"""The structs of SGLang's /generate body, with the support of every parameter."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..bounds import (
    AtLeastOne,
    Count,
    CountOrUnlimited,
    Int64,
    Penalty,
    Probability,
    RequestId,
    TokenId,
)
from ..json_body import JsonBody
from ..parameter_table import Note, ParameterTable, accept, reject, warn

MAX_TOP_LOGPROBS = 20


DEFAULT_MAX_NEW_TOKENS = 128
"""The default of SGLang's SamplingParams; an explicit null is the rest of the context.
"""


class SglangSamplingParams(Struct, frozen=True, kw_only=True):
    """SGLang's SamplingParams, without the fields that have no meaning on the wire."""

    max_new_tokens: Annotated[
        Count | None, Note("128 by default, as in SGLang; null is the rest of the context")
    ] = DEFAULT_MAX_NEW_TOKENS
    min_new_tokens: Count | None = None
    n: AtLeastOne | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, Note("0 is greedy")] = None
    top_p: Probability | None = None
    top_k: Annotated[CountOrUnlimited | None, Note("-1 disables it")] = None
    min_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: Annotated[
        dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None,
        Note("keys are token ids, values -100 to 100"),
    ] = None
    sampling_seed: Int64 | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: Annotated[bool | None, Note("true includes the stop string in the text")] = None
    json_schema: Annotated[Raw, Note("a string or an object; at most one constraint")] = Raw()
    regex: str | None = None
    ebnf: str | None = None


class SglangBody(Struct, frozen=True, kw_only=True):
    """A body of /generate.

    model: an extension; SGLang serves one model.
    """

    text: Annotated[
        str | list[str] | None, Note("one or several raw texts, without a chat template")
    ] = None
    input_ids: Annotated[
        list[TokenId | list[TokenId]] | None, Note("one or several prompts, used unchanged")
    ] = None
    sampling_params: Annotated[Raw, Note("see below; one object for all prompts")] = Raw()
    return_logprob: bool | None = None
    logprob_start_len: Annotated[
        CountOrUnlimited | None, Note("-1, the default, returns the answer only")
    ] = None
    top_logprobs_num: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None,
        Note("0 to 20, requires return_logprob"),
    ] = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    stream: Annotated[bool | None, Note("each event has the full text so far")] = None
    rid: Annotated[RequestId | None, Note("echoed as `meta_info.id`; generated if missing")] = None
    lora_path: Annotated[str | None, Note("the name of a loaded adapter")] = None
    priority: Annotated[Int64 | None, Note("higher runs first")] = None
    extra_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1_024)] | None,
        Note("cached prefixes are shared only between equal values"),
    ] = None
    model: Annotated[str | None, Note("extension to SGLang: selects one of several models")] = None


SGLANG = ParameterTable(
    "sglang",
    (SglangBody,),
    (
        *accept("log_metrics", "no_logs", "custom_labels", note="internal to the server"),
        *accept("routing_key", "session_id", "routed_dp_rank", note="a hint for routers"),
        *accept("data_parallel_rank", "modalities", note="a hint for routers"),
        *reject("input_embeds", "prompts must be texts or token ids", []),
        *reject("image_data", "send images to Chat Completions", []),
        *reject("video_data", "send media to Chat Completions", []),
        *reject("audio_data", "send media to Chat Completions", []),
        *reject("token_ids_logprob", "logprobs are available only for the most likely tokens", []),
        *reject("return_hidden_states", "hidden states are not returned", False),
        *reject("return_routed_experts", "routed experts are not reported", False),
        *reject("return_sampling_mask", "sampling masks are not returned", False),
        *reject("return_entropy", "entropies are not returned", False),
        *reject("return_flat_raw_top_logprobs", "flat logprobs are not supported", False),
        *reject("return_flat_raw_output_top_logprobs", "flat logprobs are not supported", False),
        *reject("session_params", "sessions are not supported"),
        *reject("custom_logit_processor", "requests cannot contain code"),
        *reject("positional_embed_overrides", "prompts must be texts or token ids"),
        *reject("max_thinking_tokens", "reasoning is not separated from text for raw prompts"),
        *reject("watermark", "watermarking is not supported", False),
        *reject("bootstrap_host", "disaggregated prefill is not supported"),
        *reject("bootstrap_port", "disaggregated prefill is not supported"),
        *reject("bootstrap_room", "disaggregated prefill is not supported"),
    ),
)


SGLANG_PARAMS = ParameterTable(
    "sglang_params",
    (SglangSamplingParams,),
    (
        *warn("stream_interval", "every token is sent immediately", 1),
        *accept("spaces_between_special_tokens", note="no effect: decoding follows the tokenizer"),
        *reject("stop_regex", "only strings and token ids are supported", []),
        *reject("structural_tag", "use json_schema, regex or ebnf"),
        *reject("beam_width", "beam search is not supported", 1),
        *reject("custom_params", "there is no plugin that uses it", {}),
        *reject("watermark", "watermarking is not supported", False),
    ),
)


SGLANG_REQUEST = JsonBody(
    "SglangRequest",
    (SglangBody,),
    SGLANG,
    nested={
        "sampling_params": JsonBody(
            "SglangSamplingParameters", (SglangSamplingParams,), SGLANG_PARAMS
        )
    },
    example={"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}},
)
