"""The registry of dialects: readers and writers by name, error envelopes, parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from msgspec.structs import replace

from .anthropic import MessagesWriter, read_messages
from .anthropic.errors import ANTHROPIC_ERRORS
from .anthropic.wire import COUNT_TOKENS, MESSAGES
from .chat import ChatWriter, read_chat
from .chat.wire import CHAT
from .cohere_embed import COHERE_EMBED
from .completions.reader import read_completions
from .completions.wire import COMPLETIONS
from .completions.writer import CompletionsWriter
from .decisions.openai_wire import DECISIONS
from .decisions.systemone_wire import SYSTEMONE
from .gemini.errors import GEMINI_ERRORS
from .gemini.wire import GEMINI, GEMINI_BATCH_EMBED, GEMINI_CONFIG, GEMINI_COUNT, GEMINI_EMBED
from .interfaces import GenerationCall, Header, ReaderOptions, Writer
from .llama_cpp.wire import COMPLETION, INFILL
from .ollama.errors import OLLAMA_ERRORS
from .ollama.wire import (
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    OLLAMA_MODEL,
    OLLAMA_OPTIONS,
)
from .openai_embeddings import EMBEDDINGS
from .openai_errors import OPENAI_ERRORS
from .parameter_table import ParameterSupport
from .responses.errors import RESPONSES_ERRORS
from .responses.wire import RESPONSES
from .scoring import RERANK, SCORE
from .sglang.wire import SGLANG, SGLANG_PARAMS
from .tgi.errors import TGI_ERRORS
from .tgi.wire import TGI, TGI_PARAMS
from .tokenize import DETOKENIZE, TOKENIZE
from .vllm_generate.wire import GENERATE, SAMPLING_PARAMS

Dialect = Literal["chat", "completions", "messages"]
"""OpenAI's Chat Completions, OpenAI's Completions, Anthropic's Messages."""

_READERS: Mapping[str, Callable[[bytes, ReaderOptions], GenerationCall]] = {
    "chat": read_chat,
    "completions": read_completions,
    "messages": read_messages,
}
_WRITERS: Mapping[str, Callable[[Header], Writer]] = {
    "chat": ChatWriter,
    "completions": CompletionsWriter,
    "messages": MessagesWriter,
}


def read_request(
    dialect: Dialect, body: bytes, *, default_model: str | None = None
) -> GenerationCall:
    """Parse a body into its requests, one for each prompt.

    Args:
        dialect: the API of the body.
        body: JSON text.
        default_model: model of a body that does not name one.

    Raises:
        RequestError: the body is invalid.
    """
    return _find(_READERS, dialect)(body, ReaderOptions(default_model=default_model))


def create_writer(dialect: Dialect, id: str, *, model: str, created: int = 0) -> Writer:
    """Create the writer of one answer, which is streamed (`feed`, then `end`) or
    complete (`render_full`).

    Args:
        dialect: the API of the answer.
        id: id of the answer.
        model: name of the model in the answer.
        created: Unix seconds.
    """
    return _find(_WRITERS, dialect)(Header(id, created, model))


_Item = TypeVar("_Item")


def _find(table: Mapping[str, _Item], dialect: str) -> _Item:
    if dialect not in table:
        raise ValueError(f"unknown dialect {dialect!r}; expected one of {', '.join(table)}")
    return table[dialect]


_TABLES = (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    MESSAGES,
    COUNT_TOKENS,
    EMBEDDINGS,
    COHERE_EMBED,
    RERANK,
    SCORE,
    DECISIONS,
    SYSTEMONE,
    GENERATE,
    SAMPLING_PARAMS,
    SGLANG,
    SGLANG_PARAMS,
    TGI,
    TGI_PARAMS,
    COMPLETION,
    INFILL,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OLLAMA_OPTIONS,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_MODEL,
    GEMINI,
    GEMINI_CONFIG,
    GEMINI_COUNT,
    GEMINI_EMBED,
    GEMINI_BATCH_EMBED,
    TOKENIZE,
    DETOKENIZE,
)


def list_parameters() -> tuple[ParameterSupport, ...]:
    """List the support of every parameter of every dialect, for the docs."""
    return tuple(row for table in _TABLES for row in table.rows)


ENVELOPES = (
    OPENAI_ERRORS,
    RESPONSES_ERRORS,
    ANTHROPIC_ERRORS,
    OLLAMA_ERRORS,
    GEMINI_ERRORS,
    TGI_ERRORS,
)
"""The error envelopes of all dialects."""

BY_CLIENT = replace(
    OPENAI_ERRORS,
    name="by client",
    clients=tuple(envelope for envelope in ENVELOPES if envelope.client_headers),
)
"""OpenAI's, or a vendor's own for requests with headers of its clients. Those of OpenAI
send none.
"""
