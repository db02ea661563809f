"""OpenAPI operations of Ollama's routes."""

from __future__ import annotations

from ....core.model_download import PullProgress
from ....dialects.ollama.model_info import OllamaShow
from ....dialects.ollama.response_schemas import (
    OllamaChatResponse,
    OllamaEmbedding,
    OllamaEmbedResponse,
    OllamaError,
    OllamaGenerateResponse,
    OllamaProcesses,
    OllamaTags,
    VersionObject,
)
from ....dialects.ollama.wire import (
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    OLLAMA_MODEL,
    OLLAMA_OPTIONS,
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaModelBody,
    OllamaOptions,
)
from .operation import LINES, Body, Operation, Operations, response

_TAG = "Ollama"


_OPTIONS = {"options": Body("OllamaRequestOptions", (OllamaOptions,), OLLAMA_OPTIONS)}


OLLAMA_CHAT_REQUEST = Body(
    "OllamaChatRequest",
    (OllamaChatBody,),
    OLLAMA_CHAT,
    _OPTIONS,
    {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]},
)


OLLAMA_GENERATE_REQUEST = Body(
    "OllamaGenerateRequest",
    (OllamaGenerateBody,),
    OLLAMA_GENERATE,
    _OPTIONS,
    {"model": "tiny", "prompt": "Once upon a time", "options": {"num_predict": 8}},
)


OLLAMA_EMBED_REQUEST = Body(
    "OllamaEmbedRequest",
    (OllamaEmbedBody,),
    OLLAMA_EMBED,
    _OPTIONS,
    {"model": "tiny", "input": "Hello"},
)


OLLAMA_EMBEDDINGS_REQUEST = Body(
    "OllamaEmbeddingsRequest",
    (OllamaEmbeddingsBody,),
    OLLAMA_EMBEDDINGS,
    _OPTIONS,
    {"model": "tiny", "prompt": "Hello"},
)


OLLAMA_MODEL_REQUEST = Body(
    "OllamaModelRequest", (OllamaModelBody,), OLLAMA_MODEL, None, {"model": "tiny"}
)


OLLAMA_OPERATIONS: Operations = {
    ("POST", "/api/chat"): Operation(
        _TAG,
        "Answer a conversation",
        (response(OllamaChatResponse), response(OllamaChatResponse, OllamaError, media=LINES)),
        (OLLAMA_CHAT_REQUEST,),
        generates=True,
        description="Streams unless `stream` is false. Without messages it loads or unloads the "
        "model.",
    ),
    ("POST", "/api/generate"): Operation(
        _TAG,
        "Continue a text",
        (
            response(OllamaGenerateResponse),
            response(OllamaGenerateResponse, OllamaError, media=LINES),
        ),
        (OLLAMA_GENERATE_REQUEST,),
        generates=True,
        description="Streams unless `stream` is false. Without a prompt it loads or unloads the "
        "model.",
    ),
    ("POST", "/api/embed"): Operation(
        _TAG, "Embed texts", (response(OllamaEmbedResponse),), (OLLAMA_EMBED_REQUEST,)
    ),
    ("POST", "/api/embeddings"): Operation(
        _TAG,
        "Embed a text (deprecated)",
        (response(OllamaEmbedding),),
        (OLLAMA_EMBEDDINGS_REQUEST,),
    ),
    ("GET", "/api/tags"): Operation(_TAG, "List the models", (response(OllamaTags),)),
    ("POST", "/api/show"): Operation(
        _TAG, "Show a model", (response(OllamaShow),), (OLLAMA_MODEL_REQUEST,)
    ),
    ("GET", "/api/ps"): Operation(_TAG, "List the loaded models", (response(OllamaProcesses),)),
    ("GET", "/api/version"): Operation(
        _TAG, "Show the version of Ollama's API", (response(VersionObject),)
    ),
    ("POST", "/api/pull"): Operation(
        _TAG,
        "Download a model",
        (response(PullProgress), response(PullProgress, OllamaError, media=LINES)),
        (OLLAMA_MODEL_REQUEST,),
    ),
    **{
        (method, path): Operation(_TAG, f"Not supported: {reason}", ())
        for method, path, reason in (
            ("DELETE", "/api/delete", "models are deleted with `dragoman rm`"),
            ("POST", "/api/copy", "aliases are set in the settings"),
            ("POST", "/api/create", "creation of models"),
            ("POST", "/api/push", "uploads of models"),
            ("POST", "/api/blobs/{digest}", "uploads of models"),
        )
    },
}
