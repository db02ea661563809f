"""The table of all parameters of all dialects, for the docs."""

from __future__ import annotations

from .anthropic.wire import COUNT_TOKENS, MESSAGES
from .chat.wire import CHAT
from .completions import COMPLETIONS
from .embeddings import COHERE_EMBED, EMBEDDINGS
from .generate import GENERATE, SAMPLING_PARAMS
from .ollama.wire import (
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    OLLAMA_MODEL,
    OLLAMA_OPTIONS,
)
from .parameter_table import ParameterSupport
from .responses.wire import RESPONSES
from .scoring import RERANK, SCORE
from .sglang import SGLANG, SGLANG_PARAMS
from .tgi.wire import TGI, TGI_PARAMS
from .tokenize import DETOKENIZE, TOKENIZE

ALL_PARAMETERS: tuple[ParameterSupport, ...] = (
    *CHAT.rows,
    *COMPLETIONS.rows,
    *RESPONSES.rows,
    *MESSAGES.rows,
    *COUNT_TOKENS.rows,
    *EMBEDDINGS.rows,
    *COHERE_EMBED.rows,
    *RERANK.rows,
    *SCORE.rows,
    *GENERATE.rows,
    *SAMPLING_PARAMS.rows,
    *SGLANG.rows,
    *SGLANG_PARAMS.rows,
    *TGI.rows,
    *TGI_PARAMS.rows,
    *OLLAMA_CHAT.rows,
    *OLLAMA_GENERATE.rows,
    *OLLAMA_OPTIONS.rows,
    *OLLAMA_EMBED.rows,
    *OLLAMA_EMBEDDINGS.rows,
    *OLLAMA_MODEL.rows,
    *TOKENIZE.rows,
    *DETOKENIZE.rows,
)
