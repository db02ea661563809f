"""The catalog of checks: one module per API or subject; `AREAS` lists them in the order
in which they run.
"""

from __future__ import annotations

from ..check_catalog import Area, Check

# isort: off

# The order matters: a module adds its checks when it is imported, and several modules
# add checks to the same area.
from . import generation as generation
from . import abort_on_disconnect as abort_on_disconnect
from . import api_errors as api_errors
from . import chat
from . import chat_logprobs as chat_logprobs
from . import chat_tools as chat_tools
from . import chat_rejections as chat_rejections
from . import chat_structured_output as chat_structured_output
from . import history as history
from . import sampling as sampling
from . import several_calls as several_calls

# isort: on

from . import (
    api_keys,
    background_mode,
    claude_code,
    codex,
    completions,
    conversations,
    embeddings,
    gemini,
    http,
    llamacpp,
    messages,
    model_list,
    ollama,
    operations,
    resource_exhaustion,
    responses,
    responses_websocket,
    sdk,
    sglang,
    stored_responses,
    tgi,
    token_counts,
    tokenization,
    traps,
    vllm,
)

AREAS: tuple[Area, ...] = (
    model_list.MODELS,
    chat.AREA,
    completions.AREA,
    responses.AREA,
    stored_responses.STATE,
    conversations.CONVERSATIONS,
    background_mode.BACKGROUND,
    responses_websocket.WEBSOCKET,
    messages.AREA,
    token_counts.COUNTING,
    embeddings.AREA,
    ollama.CHAT,
    ollama.GENERATE,
    ollama.OTHERS,
    gemini.GEMINI,
    vllm.VLLM,
    tokenization.TOKENIZE,
    operations.OPERATIONS,
    sglang.SGLANG,
    tgi.TGI,
    llamacpp.LLAMACPP,
    codex.CODEX,
    claude_code.CLAUDE_CODE,
    sdk.AREA,
    traps.TRAPS,
    http.AREA,
    api_keys.KEYS,
    resource_exhaustion.HEAVY,
)
CHECKS: tuple[Check, ...] = tuple(check for area in AREAS for check in area.checks)
