"""The APIs that generate text, as a client uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .error_bodies import check_ollama_error, check_openai_error
from .parsed_response import (
    ParsedResponse,
    fold_chat,
    fold_completion,
    fold_message,
    fold_ollama,
    fold_response,
    read_chat,
    read_completion,
    read_message,
    read_ollama,
    read_response,
)
from .rules import anthropic, chat, completions, ollama, responses
from .rules.json_values import JsonObject
from .sse import normalize_sse


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One API that generates text.

    source: URL of the reference.
    build_body: builds a request body from the model, the prompt and the limit of output
        tokens.
    read: reads a response object.
    fold: accumulates a stream.
    check_stream: checks the format of a stream. Raises Violation.
    check_object: checks the format of a response object. Raises Violation.
    check_error: checks the format of an error body. Raises Violation.
    limit, prompt, stop: names of the request fields; `stop` is None if there is none.
    stream_options: request fields that a stream needs besides `stream`.
    stream_type: Content-Type of a stream.
    """

    name: str
    path: str
    source: str
    build_body: Callable[[str, str, int], JsonObject]
    read: Callable[[JsonObject], ParsedResponse]
    fold: Callable[[bytes], ParsedResponse]
    check_stream: Callable[[bytes], object]
    check_object: Callable[[JsonObject], object]
    check_error: Callable[[JsonObject], object]
    limit: str
    prompt: str
    stop: str | None = None
    stream_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stream_type: str = "text/event-stream"
    is_ollama: bool = False

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is a list of messages to which the server's template is
        applied.
        """
        return self.name in ("chat", "responses", "messages", "ollama-chat")

    def build_request(self, model: str, prompt: str, limit: int = 32, **fields: Any) -> JsonObject:
        """Build a request that is as deterministic as the API allows: temperature 0,
        and a seed if there is one.
        """
        body = self.build_body(model, prompt, limit)
        if self.is_ollama:
            options = {
                "temperature": 0,
                "seed": 1,
                **body.pop("options", {}),
                **fields.pop("options", {}),
            }
            return {**body, "stream": False, "options": options, **fields}
        # Responses and Messages have no seed, and servers may reject unknown fields.
        seed = {} if self.name in ("responses", "messages") else {"seed": 1}
        return {**body, "temperature": 0, **seed, **fields}

    def build_stream_request(
        self, model: str, prompt: str, limit: int = 32, **fields: Any
    ) -> JsonObject:
        return {
            **self.build_request(model, prompt, limit, **fields),
            "stream": True,
            **self.stream_options,
        }


def _build_chat(model: str, prompt: str, limit: int) -> JsonObject:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": limit}


OPENAI_DOCS = "https://platform.openai.com/docs/api-reference"
CHAT = Dialect(
    name="chat",
    path="/v1/chat/completions",
    source=f"{OPENAI_DOCS}/chat",
    build_body=_build_chat,
    read=read_chat,
    fold=fold_chat,
    check_stream=lambda data: chat.check_stream(
        normalize_sse(data), include_usage=True, allow_variants=True
    ),
    check_object=chat.check_object,
    check_error=check_openai_error,
    limit="max_tokens",
    prompt="messages",
    stop="stop",
    stream_options={"stream_options": {"include_usage": True}},
)
COMPLETIONS = Dialect(
    name="completions",
    path="/v1/completions",
    source=f"{OPENAI_DOCS}/completions",
    build_body=lambda model, prompt, limit: {"model": model, "prompt": prompt, "max_tokens": limit},
    read=read_completion,
    fold=fold_completion,
    check_stream=lambda data: completions.check_stream(
        normalize_sse(data), include_usage=True, allow_variants=True
    ),
    check_object=completions.check_object,
    check_error=check_openai_error,
    limit="max_tokens",
    prompt="prompt",
    stop="stop",
    stream_options={"stream_options": {"include_usage": True}},
)
RESPONSES = Dialect(
    name="responses",
    path="/v1/responses",
    source=f"{OPENAI_DOCS}/responses",
    build_body=lambda model, prompt, limit: {
        "model": model,
        "input": prompt,
        # OpenAI's minimum is 16.
        "max_output_tokens": max(limit, 16),
        # Do not leave responses of checks on the server.
        "store": False,
    },
    read=read_response,
    fold=fold_response,
    check_stream=lambda data: responses.check_stream(normalize_sse(data), allow_variants=True),
    check_object=lambda reply: responses.check_object(reply, allow_variants=True),
    check_error=check_openai_error,
    limit="max_output_tokens",
    prompt="input",
)
MESSAGES = Dialect(
    name="messages",
    path="/v1/messages",
    source="https://docs.anthropic.com/en/api/messages",
    build_body=_build_chat,
    read=read_message,
    fold=fold_message,
    check_stream=lambda data: anthropic.check_stream(normalize_sse(data)),
    check_object=anthropic.check_object,
    check_error=anthropic.check_error,
    limit="max_tokens",
    prompt="messages",
    stop="stop_sequences",
)
OLLAMA_CHAT = Dialect(
    name="ollama-chat",
    path="/api/chat",
    source="https://github.com/ollama/ollama/blob/main/docs/api.md",
    build_body=lambda model, prompt, limit: {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "options": {"num_predict": limit},
    },
    read=read_ollama,
    fold=fold_ollama,
    check_stream=lambda data: ollama.check_stream(data, is_chat=True),
    check_object=lambda reply: ollama.check_object(reply, is_chat=True),
    check_error=check_ollama_error,
    limit="num_predict",
    prompt="messages",
    stop="stop",
    stream_type="application/x-ndjson",
    is_ollama=True,
)
OLLAMA_GENERATE = Dialect(
    name="ollama-generate",
    path="/api/generate",
    source="https://github.com/ollama/ollama/blob/main/docs/api.md",
    build_body=lambda model, prompt, limit: {
        "model": model,
        "prompt": prompt,
        "options": {"num_predict": limit},
    },
    read=read_ollama,
    fold=fold_ollama,
    check_stream=lambda data: ollama.check_stream(data, is_chat=False),
    check_object=lambda reply: ollama.check_object(reply, is_chat=False),
    check_error=check_ollama_error,
    limit="num_predict",
    prompt="prompt",
    stop="stop",
    stream_type="application/x-ndjson",
    is_ollama=True,
)
DIALECTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE)
