"""The structs of a body of SGLang's /generate, with SGLang's names: shapes and bounds only."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..fields import AtLeastOne, Count, CountOrUnlimited, Int64, Penalty, Probability, RequestId, TokenId

MAX_TOP_LOGPROBS = 20

DEFAULT_MAX_NEW_TOKENS = 128
"""The default of SGLang's SamplingParams; an explicit null is the rest of the context."""


class SglangSamplingParams(Struct, frozen=True, kw_only=True):
    """SGLang's SamplingParams, without the fields that have no meaning on the wire."""

    max_new_tokens: Count | None = DEFAULT_MAX_NEW_TOKENS
    min_new_tokens: Count | None = None
    n: AtLeastOne | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: CountOrUnlimited | None = None
    min_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    sampling_seed: Int64 | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    json_schema: Raw = Raw()
    regex: str | None = None
    ebnf: str | None = None


class SglangBody(Struct, frozen=True, kw_only=True):
    """A body of /generate.

    model: an extension; SGLang serves one model.
    """

    text: str | list[str] | None = None
    input_ids: list[TokenId | list[TokenId]] | None = None
    sampling_params: Raw = Raw()
    return_logprob: bool | None = None
    logprob_start_len: CountOrUnlimited | None = None
    top_logprobs_num: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    stream: bool | None = None
    rid: RequestId | None = None
    lora_path: str | None = None
    priority: Int64 | None = None
    extra_key: Annotated[str, Meta(min_length=1, max_length=1_024)] | None = None
    model: str | None = None
