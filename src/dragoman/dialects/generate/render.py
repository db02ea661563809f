"""Renders a chat to a request for token generation: vLLM's response to /v1/chat/completions/render.

It is a body for /inference/v1/generate, which returns the same tokens as the chat would.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...core.engine import TokenRequest
from ...core.request import GenerateRequest, Sampling


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


def render_generate_body(request_id: str, request: GenerateRequest, token_request: TokenRequest) -> bytes:
    """Render the body.

    request: the client's request.
    token_request: the engine's request for its first choice. Parameters that the server added are left out.
    """
    transfer = dict(token_request.extras).get("kv_transfer_params", "null")
    limits = request.limits
    params: dict[str, Any] = {
        "n": request.choices,
        **_render_sampling(token_request.sampling),
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


def _render_sampling(sampling: Sampling) -> dict[str, Any]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "logit_bias": {str(id): bias for id, bias in sampling.logit_bias} or None,
        "allowed_token_ids": None if sampling.allowed_token_ids is None else list(sampling.allowed_token_ids),
    }
