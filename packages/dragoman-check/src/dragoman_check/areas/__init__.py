"""The catalog of checks: one module per API or subject; `AREAS` lists them in the order
in which they run.
"""

from __future__ import annotations

from ..session import Area, Check
from . import chat, codex, completions, embeddings, engines, http, messages, ollama, responses, sdk
from . import (
    history as history,
)  # imported for its side effect: it adds checks to the areas of the APIs

AREAS: tuple[Area, ...] = (
    embeddings.MODELS,
    chat.AREA,
    completions.AREA,
    responses.AREA,
    responses.STATE,
    responses.CONVERSATIONS,
    responses.BACKGROUND,
    responses.WEBSOCKET,
    messages.AREA,
    messages.COUNTING,
    embeddings.AREA,
    ollama.CHAT,
    ollama.GENERATE,
    ollama.OTHERS,
    engines.VLLM,
    engines.TOKENIZE,
    engines.OPERATIONS,
    engines.SGLANG,
    engines.TGI,
    engines.LLAMACPP,
    codex.CODEX,
    messages.CLAUDE_CODE,
    sdk.AREA,
    http.AREA,
    http.KEYS,
    http.HEAVY,
)
CHECKS: tuple[Check, ...] = tuple(check for area in AREAS for check in area.checks)
