"""The structs of Ollama's request bodies, with the support of every parameter.

That of `options` too. Shapes and bounds only; the readers interpret them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..bounds import MAX_LOGPROBS, MAX_MESSAGES, Count, Penalty, Probability, TokenId
from ..generation_fields import SamplingFields
from ..json_body import JsonBody
from ..parameter_table import Note, ParameterTable, accept, reject, warn
from ..unknown_fields import NestedRules, TaggedFields

Integer = int | float
"""Ollama takes whole numbers with a decimal point as integers, as some clients send
them.
"""


class OllamaOptions(Struct, frozen=True, kw_only=True):
    """The honoured fields of `options`. Others are rows of `OLLAMA_OPTIONS`."""

    num_ctx: Annotated[
        Integer | None,
        Note(
            "the server's context applies; a larger one causes a warning, and nothing is cut off "
            "in silence"
        ),
    ] = None
    num_predict: Annotated[Integer | None, Note("-1, -2 and 0 are the rest of the context")] = None
    seed: Annotated[Integer | None, Note("-1 is random")] = None
    stop: Annotated[str | list[str] | None, Note("a string or a list")] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, Note("0 is greedy")] = None
    top_k: Annotated[Integer | None, Note("0 and below disable it")] = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    repeat_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=100)] | None, Note("1 disables it")
    ] = None
    presence_penalty: Annotated[Penalty | None, Note("-2 to 2")] = None
    frequency_penalty: Annotated[Penalty | None, Note("-2 to 2")] = None


OLLAMA_SAMPLING = SamplingFields(OllamaOptions, {"repeat_penalty": "repetition_penalty"})


class OllamaCalledFunction(Struct, frozen=True):
    """The function of a call.

    arguments: an object.
    """

    name: str
    arguments: Raw = Raw()


class OllamaWireCall(Struct, frozen=True):
    function: OllamaCalledFunction
    id: str | None = None


class OllamaWireMessage(Struct, frozen=True):
    """A message of any role.

    images: Base64.
    thinking, tool_calls: of an assistant's message.
    tool_name, tool_call_id: of a tool's message.
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


_MESSAGE = frozenset({"content", "images"})

OLLAMA_NESTED = NestedRules(
    accepted={
        OllamaWireCall: frozenset({"index", "type"}),
        OllamaCalledFunction: frozenset({"index"}),
        OllamaTool: frozenset({"items"}),
        OllamaFunction: frozenset({"strict"}),
    },
    tagged={
        OllamaWireMessage: TaggedFields(
            "role",
            {
                **dict.fromkeys(("system", "user"), _MESSAGE),
                "assistant": _MESSAGE | {"thinking", "tool_calls"},
                "tool": _MESSAGE | {"tool_name", "tool_call_id"},
            },
        )
    },
)
"""Fields that clients replay of an answer's calls, or declare of tools without an
effect on a model.
"""


class OllamaFields(Struct, frozen=True, kw_only=True):
    """The fields that /api/chat and /api/generate share. None: the client sent null or
    nothing.
    """

    model: Annotated[
        str | None,
        Note(
            "a name, an alias, or either followed by `:latest`; optional if the server has a "
            "default model"
        ),
    ] = None
    stream: Annotated[bool | None, Note("true by default")] = None
    format: Annotated[Raw, Note("`json` or a JSON Schema, both enforced")] = Raw()
    options: Annotated[Raw, Note("see below")] = Raw()
    keep_alive: Annotated[
        float | str | None,
        Note(
            "seconds or a Go duration; for models that are loaded on demand; needs the right to "
            "control models"
        ),
    ] = None
    think: Annotated[
        bool | str | None,
        Note("a boolean, or low, medium, high; rejected where the model does not support thinking"),
    ] = None
    truncate: Annotated[
        bool | None,
        Note(
            "true drops the oldest turns; without it a prompt that is too long is rejected, "
            "unlike in Ollama"
        ),
    ] = None
    logprobs: Annotated[
        bool | None, Note("of every token that has text, thinking and calls included")
    ] = None
    top_logprobs: Annotated[Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None, Note("0 to 20")] = (
        None
    )


class OllamaChatBody(OllamaFields, frozen=True, kw_only=True):
    messages: Annotated[
        Annotated[list[OllamaWireMessage], Meta(max_length=MAX_MESSAGES)] | None,
        Note("images in Base64; an assistant's message at the end is continued"),
    ] = None
    tools: Annotated[list[OllamaTool] | None, Note("functions")] = None


class OllamaGenerateBody(OllamaFields, frozen=True, kw_only=True):
    prompt: Annotated[str | None, Note("rendered by the chat template unless `raw`")] = None
    suffix: Annotated[
        str | None, Note("rejected where the model has no tokens for fill-in-the-middle")
    ] = None
    images: Annotated[list[str] | None, Note("Base64")] = None
    system: str | None = None
    template: Annotated[
        str | None, Note("a Jinja template, with `--trust-request-chat-template`")
    ] = None
    context: Annotated[
        list[TokenId] | None, Note("token ids before the prompt; for token engines")
    ] = None
    raw: bool | None = None


class OllamaEmbedBody(Struct, frozen=True, kw_only=True):
    model: str | None = None
    input: str | list[str] | None = None
    truncate: Annotated[bool | None, Note("true by default")] = None
    dimensions: Count | None = None
    options: Raw = Raw()
    keep_alive: Annotated[float | str | None, Note("as in chat")] = None


class OllamaEmbeddingsBody(Struct, frozen=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    options: Raw = Raw()
    keep_alive: Annotated[float | str | None, Note("as in chat")] = None


class OllamaModelBody(Struct, frozen=True, kw_only=True):
    """A body that names a model: of /api/show and /api/pull. `name` is the deprecated
    name of `model`.
    """

    model: Annotated[str | None, Note("of `/api/show` and `/api/pull`")] = None
    name: Annotated[str | None, Note("the deprecated name of `model`")] = None
    stream: Annotated[bool | None, Note("of `/api/pull`: true by default")] = None


_SHARED_ROWS = (
    *warn("shift", "an answer ends where the context is full", False),
    *reject("_debug_render_only", "use /v1/chat/completions/render", False),
)


OLLAMA_CHAT = ParameterTable("ollama_chat", (OllamaChatBody,), _SHARED_ROWS)
OLLAMA_GENERATE = ParameterTable(
    "ollama_generate",
    (OllamaGenerateBody,),
    (
        *_SHARED_ROWS,
        *reject("width", "images are not generated", 0),
        *reject("height", "images are not generated", 0),
        *reject("steps", "images are not generated", 0),
    ),
)

_LOAD_TIME = (
    "numa",
    "num_batch",
    "num_gqa",
    "num_gpu",
    "main_gpu",
    "low_vram",
    "f16_kv",
    "use_mmap",
    "use_mlock",
)
OLLAMA_OPTIONS = ParameterTable(
    "ollama_options",
    (OllamaOptions,),
    (
        # Ollama's default, which some clients always send.
        *warn("num_keep", "the context is never shifted", 0, 4),
        *accept("mirostat_tau", "mirostat_eta", note="no effect without mirostat"),
        *accept("vocab_only", "logits_all", "embedding_only", note="no effect on an answer"),
        *(
            row
            for name in (*_LOAD_TIME, "num_thread")
            for row in warn(name, "the server's settings determine how a model is loaded")
        ),
        *warn("repeat_last_n", "penalties apply to the whole context", -1),
        *warn("penalize_newline", "penalties apply to all tokens", True),
        *reject("typical_p", "use top_p", 1, 1.0),
        *reject("tfs_z", "use top_p", 1, 1.0),
        *reject("mirostat", "use top_p", 0),
        *reject("rope_frequency_base", "set it when the model is loaded", 0, 0.0),
        *reject("rope_frequency_scale", "set it when the model is loaded", 0, 0.0, 1, 1.0),
    ),
)

OLLAMA_EMBED = ParameterTable(
    "ollama_embed", (OllamaEmbedBody,), accept("options", note="none of them affects an embedding")
)
OLLAMA_EMBEDDINGS = ParameterTable(
    "ollama_embeddings",
    (OllamaEmbeddingsBody,),
    accept("options", note="none of them affects an embedding"),
)
OLLAMA_MODEL = ParameterTable(
    "ollama_model",
    (OllamaModelBody,),
    (
        *accept("insecure", "username", "password", note="deprecated in Ollama too"),
        *accept("verbose", note="all that is known is returned"),
        *reject("system", "there is no Modelfile to override", ""),
        *reject("template", "there is no Modelfile to override", ""),
        *reject("options", "there is no Modelfile to override", {}),
    ),
)


_OPTIONS = {"options": JsonBody("OllamaRequestOptions", (OllamaOptions,), OLLAMA_OPTIONS)}
OLLAMA_CHAT_REQUEST = JsonBody(
    "OllamaChatRequest",
    (OllamaChatBody,),
    OLLAMA_CHAT,
    _OPTIONS,
    {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]},
)
OLLAMA_GENERATE_REQUEST = JsonBody(
    "OllamaGenerateRequest",
    (OllamaGenerateBody,),
    OLLAMA_GENERATE,
    _OPTIONS,
    {"model": "tiny", "prompt": "Once upon a time", "options": {"num_predict": 8}},
)
OLLAMA_EMBED_REQUEST = JsonBody(
    "OllamaEmbedRequest",
    (OllamaEmbedBody,),
    OLLAMA_EMBED,
    _OPTIONS,
    {"model": "tiny", "input": "Hello"},
)
OLLAMA_EMBEDDINGS_REQUEST = JsonBody(
    "OllamaEmbeddingsRequest",
    (OllamaEmbeddingsBody,),
    OLLAMA_EMBEDDINGS,
    _OPTIONS,
    {"model": "tiny", "prompt": "Hello"},
)
OLLAMA_MODEL_REQUEST = JsonBody(
    "OllamaModelRequest", (OllamaModelBody,), OLLAMA_MODEL, None, {"model": "tiny"}
)
