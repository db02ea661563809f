"""Renders a chat request as a body of /inference/v1/generate, which yields the same
tokens.

vLLM's /v1/chat/completions/render.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...core.request import GenerateRequest
from ...core.token_engine import TokenRequest


class RenderedGenerateBody(Struct, frozen=True):
    request_id: str
    token_ids: tuple[int, ...]
    sampling_params: dict[str, Any]
    model: str
    features: None = None
    stream: bool = False
    stream_options: None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: Raw = Raw(b"null")


def render_generate_body(
    request_id: str, request: GenerateRequest, token_request: TokenRequest
) -> bytes:
    """Render a request as a body of /inference/v1/generate.

    request: the client's request.
    token_request: the engine's request for its first choice. Parameters that the server
        added are omitted.
    """
    transfer = token_request.extras.kv_transfer_params or "null"
    limits = request.limits
    sampling = msgspec.structs.asdict(token_request.sampling)
    # Omitted: they are token ids here, but texts in a body.
    del sampling["bad_words"]
    params: dict[str, Any] = {
        "n": request.choices,
        **sampling,
        "logit_bias": {str(id): bias for id, bias in token_request.sampling.logit_bias} or None,
        "max_tokens": token_request.max_tokens,
        "min_tokens": token_request.min_tokens,
        "stop": list(limits.stop),
        "stop_token_ids": list(limits.stop_token_ids),
        "include_stop_str_in_output": limits.include_stop,
        "ignore_eos": limits.ignore_eos,
        "logprobs": request.logprobs,
        "prompt_logprobs": request.prompt_logprobs,
    }
    return msgspec.json.encode(
        RenderedGenerateBody(
            request_id,
            token_request.prompt,
            params,
            request.model,
            cache_salt=request.cache_salt or None,
            priority=request.priority,
            kv_transfer_params=Raw(transfer.encode()),
        )
    )
