"""The description of Ollama's routes."""

from __future__ import annotations

from ....core.pull import PullProgress
from ....dialects.ollama.answers import (
    OllamaChatAnswer,
    OllamaEmbedAnswer,
    OllamaEmbedding,
    OllamaError,
    OllamaGenerateAnswer,
    OllamaProcesses,
    OllamaTags,
    VersionObject,
)
from ....dialects.ollama.models import OllamaShow
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
from .operations import LINES, Body, Catalogue, Operation, answer

_TAG = "Ollama"
_OPTIONS = {"options": Body("OllamaRequestOptions", (OllamaOptions,), OLLAMA_OPTIONS)}
CHAT_REQUEST = Body(
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
EMBED_REQUEST = Body(
    "OllamaEmbedRequest", (OllamaEmbedBody,), OLLAMA_EMBED, _OPTIONS, {"model": "tiny", "input": "Hello"}
)
EMBEDDINGS_REQUEST = Body(
    "OllamaEmbeddingsRequest",
    (OllamaEmbeddingsBody,),
    OLLAMA_EMBEDDINGS,
    _OPTIONS,
    {"model": "tiny", "prompt": "Hello"},
)
MODEL_REQUEST = Body("OllamaModelRequest", (OllamaModelBody,), OLLAMA_MODEL, None, {"model": "tiny"})

OLLAMA: Catalogue = {
    ("POST", "/api/chat"): Operation(
        _TAG,
        "Answer a conversation",
        (answer(OllamaChatAnswer), answer(OllamaChatAnswer, OllamaError, media=LINES)),
        (CHAT_REQUEST,),
        generates=True,
        description="Streams unless `stream` is false. Without messages it loads or unloads the model.",
    ),
    ("POST", "/api/generate"): Operation(
        _TAG,
        "Continue a text",
        (answer(OllamaGenerateAnswer), answer(OllamaGenerateAnswer, OllamaError, media=LINES)),
        (OLLAMA_GENERATE_REQUEST,),
        generates=True,
        description="Streams unless `stream` is false. Without a prompt it loads or unloads the model.",
    ),
    ("POST", "/api/embed"): Operation(_TAG, "Embed texts", (answer(OllamaEmbedAnswer),), (EMBED_REQUEST,)),
    ("POST", "/api/embeddings"): Operation(
        _TAG, "Embed a text (deprecated)", (answer(OllamaEmbedding),), (EMBEDDINGS_REQUEST,)
    ),
    ("GET", "/api/tags"): Operation(_TAG, "List the models", (answer(OllamaTags),)),
    ("POST", "/api/show"): Operation(_TAG, "Show a model", (answer(OllamaShow),), (MODEL_REQUEST,)),
    ("GET", "/api/ps"): Operation(_TAG, "List the loaded models", (answer(OllamaProcesses),)),
    ("GET", "/api/version"): Operation(_TAG, "Show the version of Ollama's API", (answer(VersionObject),)),
    ("POST", "/api/pull"): Operation(
        _TAG,
        "Download a model",
        (answer(PullProgress), answer(PullProgress, OllamaError, media=LINES)),
        (MODEL_REQUEST,),
    ),
    **{
        (method, path): Operation(_TAG, f"Refused: {reason}", ())
        for method, path, reason in (
            ("DELETE", "/api/delete", "models are not deleted here"),
            ("POST", "/api/copy", "models are named in the settings"),
            ("POST", "/api/create", "models are not created here"),
            ("POST", "/api/push", "models are not uploaded"),
            ("POST", "/api/blobs/{digest}", "models are not uploaded"),
        )
    },
}
