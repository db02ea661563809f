"""The structs of a /inference/v1/generate body, with the support of every parameter."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..bounds import AtLeastOne, CountOrUnlimited, Int64, Logprobs, RequestId, TokenId
from ..generation_fields import (
    DecodingFields,
    StreamOptions,
)
from ..json_body import JsonBody
from ..parameter_table import CACHE_THRESHOLD, Note, ParameterTable, accept, reject


class VllmSamplingParams(DecodingFields, frozen=True, kw_only=True):
    """vLLM's SamplingParams, without the fields that have no meaning on the wire."""

    n: AtLeastOne | None = None
    max_tokens: Annotated[
        CountOrUnlimited | None, Note("16 by default, as in vLLM; -1 is the rest of the context")
    ] = None
    stop: Annotated[str | list[str] | None, Note("matched against the decoded text")] = None
    logprobs: Annotated[Logprobs | None, Note("0 to 20; -1 is refused")] = None
    prompt_logprobs: Annotated[Logprobs | None, Note("not with stream; -1 is refused")] = None


class GenerateBody(Struct, frozen=True, kw_only=True):
    token_ids: Annotated[
        Annotated[list[TokenId], Meta(min_length=1)], Note("the prompt, used unchanged")
    ]
    sampling_params: Annotated[Raw, Note("see below; the default is the model's own")] = Raw()
    model: Annotated[str | None, Note("optional if the server has a default model")] = None
    stream: bool | None = None
    stream_options: Annotated[StreamOptions | None, Note("include_usage")] = None
    request_id: Annotated[RequestId | None, Note("echoed; generated if missing")] = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1_024)] | None = None
    priority: Annotated[
        Int64 | None, Note("lower runs first, among the requests of the same key")
    ] = None
    kv_transfer_params: Annotated[Raw, Note("for engines that support it")] = Raw()


GENERATE = ParameterTable(
    "generate",
    (GenerateBody,),
    (*CACHE_THRESHOLD, *reject("features", "only token input is supported", {})),
)


SAMPLING_PARAMS = ParameterTable(
    "sampling_params",
    (VllmSamplingParams,),
    (
        *accept("output_kind", "detokenize", "skip_clone", note="internal to vLLM"),
        *accept("flat_logprobs", "skip_reading_prefix_cache", note="internal to vLLM"),
        *accept("spaces_between_special_tokens", note="there is no text output"),
        *reject("logits_processors", "requests cannot contain code", []),
        *reject("extra_args", "there is no plugin that uses it", {}),
        *reject(
            "thinking_token_budget", "reasoning is not separated from text for token prompts", -1
        ),
        *reject("repetition_detection", "not supported"),
        *reject("logprob_token_ids", "logprobs are available only for the most likely tokens", []),
        *reject("best_of", "use n", 1),
        *CACHE_THRESHOLD,
    ),
)


GENERATE_REQUEST = JsonBody(
    "TokenGenerationRequest",
    (GenerateBody,),
    GENERATE,
    nested={
        "sampling_params": JsonBody(
            "VllmSamplingParameters", (VllmSamplingParams,), SAMPLING_PARAMS
        )
    },
    example={"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 8}},
)
