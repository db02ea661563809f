"""The structs of Ollama's request bodies and the support of every parameter, of `options` too: shapes and bounds only.

The readers interpret them.
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..body import NestedRules, abbreviate, invalid_value
from ..fields import INT32, MAX_LOGPROBS, MAX_MESSAGES, Count, Penalty, Probability, TokenId
from ..parameter_table import ParameterSupport, ParameterTable, accept, honour, reject, warn

Int32 = Annotated[int, Meta(ge=-INT32 - 1, le=INT32)]
Integer = int | float
"""Ollama takes whole numbers with a decimal point as integers, as some clients send them."""


class OllamaOptions(Struct, frozen=True, kw_only=True):
    """The honoured fields of `options`. Others are rows of `OLLAMA_OPTIONS`."""

    num_ctx: Integer | None = None
    num_predict: Integer | None = None
    seed: Integer | None = None
    stop: str | list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Integer | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class OllamaCalledFunction(Struct, frozen=True):
    """The function of a call. arguments: an object."""

    name: str
    arguments: Raw = Raw()


class OllamaWireCall(Struct, frozen=True):
    function: OllamaCalledFunction
    id: str | None = None


class OllamaWireMessage(Struct, frozen=True):
    """A message of any role.

    images: Base64. tool_name, tool_call_id: of a tool's message.
    """

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaWireCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaFunction(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: Raw = Raw()


class OllamaTool(Struct, frozen=True):
    function: OllamaFunction
    type: str = "function"


OLLAMA_NESTED = NestedRules(
    accepted={
        OllamaWireCall: frozenset({"index", "type"}),
        OllamaCalledFunction: frozenset({"index"}),
        OllamaTool: frozenset({"items"}),
        OllamaFunction: frozenset({"strict"}),
    }
)
"""What clients replay of our calls, and declare of tools without an effect on a model."""


class OllamaFields(Struct, frozen=True, kw_only=True):
    """The fields that /api/chat and /api/generate share. None: the client sent null or nothing."""

    model: str | None = None
    stream: bool | None = None
    format: Raw = Raw()
    options: Raw = Raw()
    keep_alive: float | str | None = None
    think: bool | str | None = None
    truncate: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None


class OllamaChatBody(OllamaFields, frozen=True, kw_only=True):
    messages: Annotated[list[OllamaWireMessage], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: list[OllamaTool] | None = None


class OllamaGenerateBody(OllamaFields, frozen=True, kw_only=True):
    prompt: str | None = None
    suffix: str | None = None
    images: list[str] | None = None
    system: str | None = None
    template: str | None = None
    context: list[TokenId] | None = None
    raw: bool | None = None


class OllamaEmbedBody(Struct, frozen=True, kw_only=True):
    model: str | None = None
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: Count | None = None
    options: Raw = Raw()
    keep_alive: float | str | None = None


class OllamaEmbeddingsBody(Struct, frozen=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    options: Raw = Raw()
    keep_alive: float | str | None = None


class OllamaModelBody(Struct, frozen=True, kw_only=True):
    """A body that names a model: of /api/show and /api/pull. `name` is the deprecated name of `model`."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None


CHAT, GENERATE, OPTIONS = "ollama_chat", "ollama_generate", "ollama_options"
EMBED, EMBEDDINGS, MODEL = "ollama_embed", "ollama_embeddings", "ollama_model"

_SHARED = (
    ("model", "a name, an alias, or either followed by `:latest`; optional if the server has a default model"),
    ("stream", "true by default"),
    ("format", "`json` or a JSON Schema, both enforced"),
    ("options", "see below"),
    ("keep_alive", "seconds or a Go duration; for models that are loaded on demand; needs the right to control models"),
    ("think", "a boolean, or low, medium, high; rejected where the model does not support thinking"),
    ("truncate", "true drops the oldest turns; without it a prompt that is too long is rejected, unlike in Ollama"),
    ("logprobs", "of every token that has text, thinking and calls included"),
    ("top_logprobs", "0 to 20"),
)


def _build_shared(dialect: str) -> tuple[ParameterSupport, ...]:
    return (
        *(row for name, note in _SHARED for row in honour(dialect, name, note=note)),
        *warn(dialect, "shift", "an answer ends where the context is full", False),
        *reject(dialect, "_debug_render_only", "use /v1/chat/completions/render", False),
    )


OLLAMA_CHAT = ParameterTable(
    (
        *_build_shared(CHAT),
        *honour(CHAT, "messages", note="images in Base64; an assistant's message at the end is continued"),
        *honour(CHAT, "tools", note="functions"),
    )
)
OLLAMA_GENERATE = ParameterTable(
    (
        *_build_shared(GENERATE),
        *honour(GENERATE, "prompt", note="rendered by the chat template unless `raw`"),
        *honour(GENERATE, "suffix", note="rejected where the model has no tokens for fill-in-the-middle"),
        *honour(GENERATE, "images", note="Base64"),
        *honour(GENERATE, "system"),
        *honour(GENERATE, "template", note="a Jinja template, with `--trust-request-chat-template`"),
        *honour(GENERATE, "context", note="token ids before the prompt; for engines of tokens"),
        *honour(GENERATE, "raw"),
        *reject(GENERATE, "width", "images are not generated", 0),
        *reject(GENERATE, "height", "images are not generated", 0),
        *reject(GENERATE, "steps", "images are not generated", 0),
    )
)

_HONOURED_OPTIONS = (
    ("num_ctx", "the server's context applies; a larger one causes a warning, and nothing is cut off in silence"),
    ("num_predict", "-1, -2 and 0 are the rest of the context"),
    ("seed", "-1 is random"),
    ("stop", "a string or a list"),
    ("temperature", "0 is greedy"),
    ("top_k", "0 and below disable it"),
    ("top_p", ""),
    ("min_p", ""),
    ("repeat_penalty", "1 disables it"),
    ("presence_penalty", "-2 to 2"),
    ("frequency_penalty", "-2 to 2"),
)
_LOAD_TIME = ("numa", "num_batch", "num_gqa", "num_gpu", "main_gpu", "low_vram", "f16_kv", "use_mmap", "use_mlock")
OLLAMA_OPTIONS = ParameterTable(
    (
        *(row for name, note in _HONOURED_OPTIONS for row in honour(OPTIONS, name, note=note)),
        *accept(OPTIONS, "num_keep", note="the context is never shifted"),
        *accept(OPTIONS, "mirostat_tau", "mirostat_eta", note="no effect without mirostat"),
        *accept(OPTIONS, "vocab_only", "logits_all", "embedding_only", note="no effect on an answer"),
        *(
            row
            for name in (*_LOAD_TIME, "num_thread")
            for row in warn(OPTIONS, name, "the server's settings determine how a model is loaded")
        ),
        *warn(OPTIONS, "repeat_last_n", "penalties apply to the whole context", -1),
        *warn(OPTIONS, "penalize_newline", "penalties apply to all tokens", True),
        *reject(OPTIONS, "typical_p", "use top_p", 1, 1.0),
        *reject(OPTIONS, "tfs_z", "use top_p", 1, 1.0),
        *reject(OPTIONS, "mirostat", "use top_p", 0),
        *reject(OPTIONS, "rope_frequency_base", "set it when the model is loaded", 0, 0.0),
        *reject(OPTIONS, "rope_frequency_scale", "set it when the model is loaded", 0, 0.0, 1, 1.0),
    )
)

OLLAMA_EMBED = ParameterTable(
    (
        *honour(EMBED, "model", "input", "dimensions"),
        *honour(EMBED, "truncate", note="true by default"),
        *honour(EMBED, "keep_alive", note="as in chat"),
        *accept(EMBED, "options", note="none of them affects an embedding"),
    )
)
OLLAMA_EMBEDDINGS = ParameterTable(
    (
        *honour(EMBEDDINGS, "model", "prompt"),
        *honour(EMBEDDINGS, "keep_alive", note="as in chat"),
        *accept(EMBEDDINGS, "options", note="none of them affects an embedding"),
    )
)
OLLAMA_MODEL = ParameterTable(
    (
        *honour(MODEL, "model", note="of `/api/show` and `/api/pull`"),
        *honour(MODEL, "name", note="the deprecated name of `model`"),
        *honour(MODEL, "stream", note="of `/api/pull`: true by default"),
        *accept(MODEL, "insecure", "username", "password", note="deprecated in Ollama too"),
        *accept(MODEL, "verbose", note="all that is known is returned"),
        *reject(MODEL, "system", "there is no Modelfile to override", ""),
        *reject(MODEL, "template", "there is no Modelfile to override", ""),
        *reject(MODEL, "options", "there is no Modelfile to override", {}),
    )
)


_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_TERM = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[+-]?(?:{_TERM})+", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,9})?", re.ASCII)
_TERMS = re.compile(_TERM, re.ASCII)
MAX_DURATION_TEXT = 64


def read_keep_alive(value: float | str | None) -> float | None:
    """Return seconds; infinity for a negative duration, None if absent. Raises RequestError."""
    if value is None:
        return None
    seconds = _parse_duration(value) if isinstance(value, str) else value
    return math.inf if seconds < 0 else seconds


def _parse_duration(text: str) -> float:
    """Parse a Go duration (https://pkg.go.dev/time#ParseDuration), or a number of seconds."""
    if len(text) <= MAX_DURATION_TEXT:
        if _NUMBER.fullmatch(text):
            return float(text)
        if _DURATION.fullmatch(text):
            sign = -1 if text.startswith("-") else 1
            return sign * sum(float(number) * _SECONDS[unit] for number, unit in _TERMS.findall(text))
    raise invalid_value(
        "keep_alive", f"expected seconds, or a duration such as '5m', '1h30m' or '-1s', got {abbreviate(text)}"
    )
