"""Renders TGI's /info."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..fields import MAX_LOGPROBS
from .wire import MAX_BEST_OF


class TgiInfo(Struct, frozen=True):
    """The body of /info.

    max_total_tokens: tokens of prompt and answer together.
    """

    model_id: str
    max_total_tokens: int
    max_stop_sequences: int
    version: str
    model_sha: None = None
    model_pipeline_tag: str = "text-generation"
    max_best_of: int = MAX_BEST_OF
    max_top_n_tokens: int = MAX_LOGPROBS
    router: str = "dragoman"


def render_tgi_info(model: str, max_total_tokens: int, max_stop: int, version: str) -> bytes:
    return msgspec.json.encode(TgiInfo(model, max_total_tokens, max_stop, version))
