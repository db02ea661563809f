"""The structs of a body of /inference/v1/generate: shapes and bounds only."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..fields import AtLeastOne, CountOrUnlimited, DecodingFields, Int64, Logprobs, RequestId, StreamOptions, TokenId


class VllmSamplingParams(DecodingFields, frozen=True, kw_only=True):
    """vLLM's SamplingParams, without the fields that have no meaning on the wire."""

    n: AtLeastOne | None = None
    max_tokens: CountOrUnlimited | None = None
    stop: str | list[str] | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None


class GenerateBody(Struct, frozen=True, kw_only=True):
    token_ids: Annotated[list[TokenId], Meta(min_length=1)]
    sampling_params: Raw = Raw()
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    request_id: RequestId | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1_024)] | None = None
    priority: Int64 | None = None
    kv_transfer_params: Raw = Raw()
