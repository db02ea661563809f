"""The fields that vLLM adds to OpenAI's responses."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..core.events import Timings, Usage, WeightSpan
from .interfaces import Profile
from .json_encoding import encode_field, encode_int, encode_string, escape_line_breaks


def render_kv_transfer(params: str | None, profile: Profile) -> bytes:
    """Render vLLM's `kv_transfer_params` of a full response: always in its profile, in
    OpenAI's only if set.
    """
    if params is None:
        return b',"kv_transfer_params":null' if profile is Profile.VLLM else b""
    return encode_field("kv_transfer_params", params)


class VllmRequestMetrics(Struct, frozen=True):
    """vLLM's metrics of a request, in milliseconds; null is unknown."""

    # Same fields as PerRequestMetrics in entrypoints/generate/base/protocol.py of vLLM
    # 0.33.
    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    queue_time_ms: float
    mean_itl_ms: float | None
    tokens_per_second: float | None


def render_metrics(usage: Usage, timings: Timings | None) -> bytes:
    """Render vLLM's `metrics` of a response with one choice, after a comma; empty if
    they are not reported.
    """
    if timings is None:
        return b""
    prefill = timings.first_token
    decode = timings.decode
    tokens = None if usage.is_estimate else usage.completion
    metrics = VllmRequestMetrics(
        None if prefill is None else prefill * 1e3,
        None if prefill is None else decode * 1e3,
        timings.queue * 1e3,
        decode * 1e3 / (tokens - 1) if prefill is not None and tokens and tokens > 1 else None,
        tokens / (prefill + decode)
        if prefill is not None and tokens is not None and prefill + decode > 0
        else None,
    )
    return b',"metrics":' + msgspec.json.encode(metrics)


def render_weight_versions(spans: tuple[WeightSpan, ...] | None) -> bytes:
    """Render `weight_versions` of a finished choice, after a comma: the weights that
    sampled its tokens, or null.
    """
    return b',"weight_versions":%s' % escape_line_breaks(msgspec.json.encode(spans))


def render_stop_reason(stop: str | int | None) -> bytes:
    """Render vLLM's `stop_reason`: the matched stop string or token id, or null."""
    return encode_string(stop) if isinstance(stop, str) else encode_int(stop)
