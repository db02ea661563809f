"""The kind of servers with Google's Gemini API."""

from __future__ import annotations

from types import MappingProxyType
from urllib.parse import SplitResult

from msgspec import Struct, field

from ...core.capabilities import Feature
from ...core.encoder_requests import EncodingTask
from ...core.field_names import FieldNames
from .gemini_embeddings import decode_gemini_embeddings, encode_gemini_embed_request
from .gemini_events import GeminiEventReader
from .gemini_request import encode_count_tokens_request, encode_gemini_request, name_model
from .server_kind import ServerKind, TokenCounting, UpstreamApi
from .upstream_models import ModelQueries, ModelTasks, UpstreamModel

_GENERATION = r"generation_?[cC]onfig\."


class _TokenCount(Struct, frozen=True):
    """The response of `countTokens`."""

    count: int = field(name="totalTokens")


class _Model(Struct):
    """A model in Google's list. name: begins with `models/`."""

    name: str
    inputTokenLimit: int | None = None
    outputTokenLimit: int | None = None
    supportedGenerationMethods: list[str] = []


class _Models(Struct):
    models: list[_Model]


def _find_model(
    model: str | None, tasks: ModelTasks | None, queries: ModelQueries
) -> UpstreamModel:
    url = f"{queries.base_url}/models?pageSize=1000"
    models = queries.fetch(url, _Models, "list models as Gemini's API does").models
    wanted = None if model is None else name_model(model)
    listed = next((candidate for candidate in models if wanted in (None, candidate.name)), None)
    if listed is None:
        raise queries.build_unlisted_error(model, [candidate.name for candidate in models])
    methods = listed.supportedGenerationMethods
    if tasks is None and "embedContent" in methods:
        encoding = frozenset({EncodingTask.EMBEDDINGS})
        tasks = ModelTasks("generateContent" in methods, encoding)
    return UpstreamModel(
        model or listed.name.removeprefix("models/"),
        listed.inputTokenLimit,
        tasks or ModelTasks(),
        max_tokens=listed.outputTokenLimit,
    )


def _is_at(url: SplitResult) -> bool:
    path = url.path.rstrip("/")
    # Below `/openai`, Google has Chat Completions.
    return path.endswith("/v1beta") or (
        url.hostname == "generativelanguage.googleapis.com" and not path.endswith("/openai")
    )


GEMINI_API = UpstreamApi(
    encode=encode_gemini_request,
    create_reader=lambda _, new_id, __: GeminiEventReader(new_id),
    encode_embeddings=encode_gemini_embed_request,
    decode_embeddings=decode_gemini_embeddings,
    counting=TokenCounting(encode_count_tokens_request, _TokenCount),
    key_header="x-goog-api-key",
    version="/v1beta",
)

GEMINI = ServerKind(
    name="gemini",
    features=frozenset(
        {
            Feature.JSON_OBJECT,
            Feature.JSON_SCHEMA,
            Feature.CHOICE,
            Feature.TOOLS,
            Feature.IMAGES,
            Feature.AUDIO,
            Feature.FILES,
            Feature.REASONING_BUDGET,
        }
    ),
    parameters=frozenset(
        {"temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed"}
        | {"max_tokens", "stop", "reasoning_effort", "enable_thinking"}
    ),
    api=GEMINI_API,
    find_model=_find_model,
    is_at=_is_at,
    parameter_names=MappingProxyType(
        {
            "top_p": "topP",
            "top_k": "topK",
            "presence_penalty": "presencePenalty",
            "frequency_penalty": "frequencyPenalty",
        }
    ),
    field_names=FieldNames(
        # Google's errors have names in snake_case.
        (_GENERATION + "max_?[oO]utput_?[tT]okens", "max_tokens"),
        (_GENERATION + "stop_?[sS]equences", "stop"),
        (_GENERATION + "top_?[pP]", "top_p"),
        (_GENERATION + "top_?[kK]", "top_k"),
        (_GENERATION + "presence_?[pP]enalty", "presence_penalty"),
        (_GENERATION + "frequency_?[pP]enalty", "frequency_penalty"),
        (_GENERATION + r"thinking_?[cC]onfig\.thinking_?[bB]udget", "thinking_token_budget"),
        (_GENERATION + r"thinking_?[cC]onfig\.thinking_?[lL]evel", "reasoning_effort"),
        (
            _GENERATION + "response_?([mM]ime_?[tT]ype|[jJ]son_?[sS]chema|[sS]chema)",
            "response_format",
        ),
        (_GENERATION + "temperature", "temperature"),
        (_GENERATION + "seed", "seed"),
        ("tool_?[cC]onfig", "tool_choice"),
        (r"contents\[\d+\]", "messages"),
        ("contents", "messages"),
        ("output_?[dD]imensionality", "dimensions"),
    ),
    has_audio=False,
)
