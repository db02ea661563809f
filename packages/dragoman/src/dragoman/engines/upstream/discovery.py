"""The kinds of servers that can be upstreams, and discovery: the models of an upstream,
their limits and tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
import msgspec
from msgspec import Struct

from ...core.embeddings import EncodingTask
from ...core.engine import Feature
from ...core.errors import CORE_NAMES, EngineError, FieldNames

T = TypeVar("T")

ANTHROPIC_VERSION = "2023-06-01"
_KNOWN_HOSTS = {"api.anthropic.com": "anthropic"}
"""Kind of server by host, for hosts whose kind is known without a request."""


class Upstream(Struct, frozen=True):
    """One upstream server.

    url: base URL, without `/chat/completions`.
    weight: relative share of new conversations.
    key: bearer token; never logged.
    """

    url: str
    weight: float = 1.0
    key: str | None = None

    def __repr__(self) -> str:
        return f"Upstream({self.url!r})"


class Wire(StrEnum):
    """The API with which a server generates text."""

    CHAT = "chat"
    MESSAGES = "messages"
    RESPONSES = "responses"


class ServerKind(Struct, frozen=True):
    """One kind of server.

    features, parameters: see Capabilities.
    wire: the API that requests use. CHAT includes Completions, for prompts that are not
        conversations.
    owners: values of `owned_by` in its `/models`.
    max_tokens_field: name of the field for max_tokens in Chat Completions.
    unlimited_max_tokens: JSON value of max_tokens for "the rest of the context" in
        Completions; None if there is none.
    reasoning_fields: fields that accept past reasoning of the assistant.
    returns_token_ids: whether it returns token ids on request, and usage with every
        chunk.
    has_developer_role: whether it accepts the developer role.
    has_openai_tools: whether it accepts custom tools and `allowed_tools`.
    has_structured_outputs: whether it accepts vLLM's `structured_outputs`.
    has_one_task: whether it serves one model, which either generates, embeds or scores.
    has_encoding_options: whether it has `/score` and vLLM's options for embeddings.
    has_tei_rerank: whether it has `/rerank` in the format of Text Embeddings Inference.
    has_admin_routes: whether it has vLLM's routes to pause, sleep, reset the prefix
        cache and load adapters.
    reports_warnings: whether its responses list ignored parts of the request, if asked
        to.
    parameter_names: its names of parameters, where they differ from ours.
    field_names: maps field names in its errors and warnings to ours, where they differ.
    max_logprobs: maximum of top_logprobs.
    """

    name: str
    features: frozenset[Feature]
    parameters: frozenset[str]
    wire: Wire = Wire.CHAT
    owners: tuple[str, ...] = ()
    max_tokens_field: str = "max_tokens"
    unlimited_max_tokens: bytes | None = None
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    returns_token_ids: bool = False
    has_developer_role: bool = False
    has_openai_tools: bool = False
    has_structured_outputs: bool = False
    has_one_task: bool = False
    has_encoding_options: bool = False
    has_tei_rerank: bool = False
    has_admin_routes: bool = False
    reports_warnings: bool = False
    parameter_names: Mapping[str, str] = MappingProxyType({})
    field_names: FieldNames = CORE_NAMES
    max_logprobs: int = 20


_OPENAI_FEATURES = frozenset(
    {
        Feature.JSON_OBJECT,
        Feature.JSON_SCHEMA,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.IMAGES,
        Feature.AUDIO,
        Feature.FILES,
    }
)
_OPENAI = frozenset(
    {
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "logit_bias",
        "max_tokens",
        "stop",
        "best_of",
        "reasoning_effort",
        "detail",
    }
)
_TEMPLATE = frozenset({"chat_template_kwargs", "enable_thinking"})
_VLLM_FEATURES = _OPENAI_FEATURES | {
    Feature.REGEX,
    Feature.CHOICE,
    Feature.GRAMMAR,
    Feature.TOKEN_IDS,
    Feature.PROMPT_LOGPROBS,
    Feature.LORA,
}
_VLLM = (
    _OPENAI
    | _TEMPLATE
    | {"top_k", "min_p", "repetition_penalty", "allowed_token_ids", "bad_words"}
    | {"min_tokens", "stop_token_ids", "include_stop", "ignore_eos", "truncate_prompt"}
    | {"kv_transfer_params", "vllm_xargs", "lora", "session_id"}
    | {"priority", "cache_salt", "skip_special_tokens", "documents", "continue_final_message"}
)
_LOCAL = _OPENAI | _TEMPLATE | {"top_k", "min_p", "repetition_penalty"}

_ALL = (
    ServerKind("compatible", _OPENAI_FEATURES, _OPENAI),
    ServerKind(
        "openai",
        _OPENAI_FEATURES,
        _OPENAI,
        owners=("openai", "openai-internal", "system"),
        max_tokens_field="max_completion_tokens",
        field_names=FieldNames(("max_completion_tokens", "max_tokens")),
        reasoning_fields=(),
        has_developer_role=True,
        has_openai_tools=True,
    ),
    ServerKind(
        "vllm",
        _VLLM_FEATURES | {Feature.REASONING_BUDGET},
        # vLLM rejects a priority unless it runs with the priority scheduling policy.
        _VLLM - {"priority"},
        owners=("vllm",),
        unlimited_max_tokens=b"null",
        reasoning_fields=("reasoning", "reasoning_content"),
        returns_token_ids=True,
        has_one_task=True,
        has_encoding_options=True,
        has_admin_routes=True,
        has_structured_outputs=True,
    ),
    ServerKind(
        "dragoman",
        _VLLM_FEATURES | {Feature.REASONING_BUDGET},
        _VLLM | {"close_at_limit"},
        owners=("dragoman",),
        unlimited_max_tokens=b"-1",
        returns_token_ids=True,
        has_encoding_options=True,
        has_admin_routes=True,
        has_developer_role=True,
        has_openai_tools=True,
        has_structured_outputs=True,
        reports_warnings=True,
    ),
    ServerKind(
        "sglang",
        _OPENAI_FEATURES | {Feature.REGEX},
        _LOCAL | {"min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens"},
        owners=("sglang",),
        has_one_task=True,
    ),
    ServerKind(
        "llama.cpp",
        _OPENAI_FEATURES | {Feature.GRAMMAR},
        _LOCAL | {"ignore_eos"},
        owners=("llamacpp",),
        unlimited_max_tokens=b"-1",
        parameter_names=MappingProxyType({"repetition_penalty": "repeat_penalty"}),
        field_names=FieldNames(("repeat_penalty", "repetition_penalty")),
        has_one_task=True,
    ),
    # Any server with Anthropic's Messages API.
    ServerKind(
        "anthropic",
        frozenset(
            {
                Feature.JSON_SCHEMA,
                Feature.TOOLS,
                Feature.IMAGES,
                Feature.FILES,
                Feature.REASONING_BUDGET,
            }
        ),
        frozenset(
            {
                "temperature",
                "top_p",
                "top_k",
                "max_tokens",
                "stop",
                "reasoning_effort",
                "enable_thinking",
            }
        ),
        wire=Wire.MESSAGES,
        field_names=FieldNames(
            ("stop_sequences", "stop"),
            (r"thinking\.budget_tokens", "thinking_token_budget"),
            (r"output_config\.effort", "reasoning_effort"),
            (r"output_config\.format", "response_format"),
        ),
    ),
    # Any server with OpenAI's Responses API, which lacks stop strings; the pipeline
    # applies them.
    ServerKind(
        "responses",
        frozenset(
            {Feature.JSON_OBJECT, Feature.JSON_SCHEMA, Feature.TOOLS, Feature.IMAGES, Feature.FILES}
        ),
        frozenset({"temperature", "top_p", "max_tokens", "reasoning_effort", "detail"}),
        wire=Wire.RESPONSES,
        field_names=FieldNames(
            ("input", "messages"),
            ("max_output_tokens", "max_tokens"),
            (r"reasoning\.effort", "reasoning_effort"),
            (r"text\.format", "response_format"),
        ),
        has_openai_tools=True,
    ),
    # Hugging Face's Text Embeddings Inference, which does not generate text.
    ServerKind("tei", frozenset(), frozenset(), has_tei_rerank=True),
)
KINDS: Mapping[str, ServerKind] = MappingProxyType({kind.name: kind for kind in _ALL})


def find_kind(owner: str) -> ServerKind:
    """Find the kind of server by the `owned_by` of its models."""
    return next((kind for kind in _ALL if owner.lower() in kind.owners), KINDS["compatible"])


# Discovery at startup.


class ModelTasks(Struct, frozen=True):
    """The tasks of a model.

    generates: whether it generates text.
    encoding: its other tasks, in addition to generation or instead of it.
    """

    generates: bool = True
    encoding: frozenset[EncodingTask] = frozenset()


class DiscoveredModel(Struct, frozen=True):
    """A model of an upstream.

    max_model_len: context length in tokens; None if the upstream does not report it.
    adapters: names of its loaded LoRA adapters.
    max_tokens: most output tokens; None if the upstream does not report it.
    """

    model: str
    kind: ServerKind
    max_model_len: int | None
    tasks: ModelTasks = ModelTasks()
    adapters: tuple[str, ...] = ()
    max_tokens: int | None = None


class _Meta(Struct):
    n_ctx_train: int | None = None


class _Details(Struct):
    capabilities: list[str] | None = None


class _Model(Struct):
    """A model in OpenAI's list, or in Anthropic's, which has `type`, two limits and no
    `object`.
    """

    id: str
    type: str | None = None
    object: str | None = None
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    owned_by: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    meta: _Meta | None = None
    dragoman: _Details | None = None


class _Models(Struct):
    data: list[_Model]


class _TeiInfo(Struct):
    model_id: str
    model_type: dict[str, object]
    max_input_length: int | None = None


def discover(
    upstream: Upstream,
    model: str | None,
    *,
    kind: ServerKind | None = None,
    tasks: ModelTasks | None = None,
    client: httpx2.Client | None = None,
) -> DiscoveredModel:
    """Query an upstream's models. Blocking. Raises EngineError.

    model: its name; None selects the first one.
    kind: None detects it.
    tasks: None detects them, if necessary with requests for a text of one letter.
    """
    # Before any request: Anthropic's API rejects requests without its version header,
    # even for the list of models.
    kind = kind or find_kind_by_host(upstream.url)
    with client or httpx2.Client(timeout=10.0) as http:
        http.headers.update(build_auth_headers(upstream, kind))
        if kind is KINDS["tei"]:
            return _discover_tei(upstream, model, tasks, http)
        url = f"{upstream.url}/models"
        purpose = "list models as OpenAI's API does"
        try:
            models = _fetch(url, _Models, purpose, http).data
        except EngineError:
            if kind is not None or not _speaks_anthropic(url, http):
                raise
            kind = KINDS["anthropic"]
            http.headers.pop("authorization", None)
            http.headers.update(build_auth_headers(upstream, kind))
            models = _fetch(url, _Models, purpose, http).data
        listed = next((candidate for candidate in models if model in (None, candidate.id)), None)
        if listed is None:
            names = ", ".join(candidate.id for candidate in models[:20])
            raise EngineError(f"{upstream.url} has no model {model!r}. It has: {names or 'none'}")
        # Only Anthropic lists models without OpenAI's fields; servers with both APIs
        # have them.
        if (
            kind is None
            and listed.type == "model"
            and listed.object is None
            and listed.owned_by is None
        ):
            kind = KINDS["anthropic"]
        kind = kind or find_kind(listed.owned_by or "")
        limit = listed.max_model_len or listed.max_input_tokens
        if limit is None and listed.meta is not None:
            # llama.cpp's list has no max_model_len, only the context length of the
            # training.
            limit = listed.meta.n_ctx_train
        if tasks is None and listed.dragoman is not None and listed.dragoman.capabilities:
            capabilities = listed.dragoman.capabilities
            encoding = frozenset(task for task in EncodingTask if task.value in capabilities)
            tasks = ModelTasks("generation" in capabilities or not encoding, encoding)
        elif tasks is None:
            tasks = _try_tasks(upstream, listed.id, kind, http)
    adapters = tuple(candidate.id for candidate in models if candidate.parent == listed.id)
    return DiscoveredModel(listed.id, kind, limit, tasks, adapters, listed.max_tokens)


def find_kind_by_host(url: str) -> ServerKind | None:
    """Find the kind of a server by its host, without a request; None if the host is
    unknown.
    """
    name = _KNOWN_HOSTS.get(urlsplit(url).hostname or "")
    return None if name is None else KINDS[name]


class _AnthropicErrorDetail(Struct):
    type: str


class _AnthropicError(Struct, tag_field="type", tag="error"):
    """Anthropic's error envelope."""

    error: _AnthropicErrorDetail


def _speaks_anthropic(url: str, http: httpx2.Client) -> bool:
    """Whether a server rejects an OpenAI-style request with Anthropic's error envelope,
    since it lacks its headers.
    """
    try:
        response = http.get(url)
        if response.status_code in (400, 401, 403):
            msgspec.json.decode(response.read(), type=_AnthropicError)
            return True
    except (httpx2.HTTPError, msgspec.MsgspecError, UnicodeDecodeError):
        # The caller raises the error of its own request.
        return False
    return False


def _discover_tei(
    upstream: Upstream, model: str | None, tasks: ModelTasks | None, http: httpx2.Client
) -> DiscoveredModel:
    # TEI's own routes are at the root, its OpenAI-compatible ones below `/v1`.
    url = f"{upstream.url.removesuffix('/v1')}/info"
    info = _fetch(url, _TeiInfo, "describe a model as Text Embeddings Inference does", http)
    by_type = {"embedding": EncodingTask.EMBEDDINGS, "reranker": EncodingTask.SCORING}
    encoding = frozenset(task for name, task in by_type.items() if name in info.model_type)
    if tasks is None and not encoding:
        raise EngineError(
            f"{url}: the model neither embeds nor reranks: {', '.join(info.model_type)}"
        )
    return DiscoveredModel(
        model or info.model_id,
        KINDS["tei"],
        info.max_input_length,
        tasks or ModelTasks(False, encoding),
    )


def _try_tasks(upstream: Upstream, model: str, kind: ServerKind, http: httpx2.Client) -> ModelTasks:
    """Find the tasks of a server of one model by trying embeddings and scores.

    Other servers are not tried, since they may bill the request or load a model for it.
    """
    if not kind.has_one_task:
        return ModelTasks()
    base = upstream.url.removesuffix("/v1")
    scoring: tuple[str, dict[str, object]] = (
        f"{upstream.url}/rerank",
        {"query": "a", "documents": ["a"]},
    )
    if kind.has_encoding_options:
        scoring = (f"{base}/score", {"text_1": "a", "text_2": "a"})
    trials = (
        (EncodingTask.EMBEDDINGS, f"{upstream.url}/embeddings", {"input": "a"}),
        (EncodingTask.SCORING, *scoring),
    )
    for task, url, fields in trials:
        with suppress(httpx2.HTTPError):
            if http.post(url, json={"model": model, **fields}).status_code == 200:
                return ModelTasks(False, frozenset({task}))
    return ModelTasks()


def _fetch(url: str, type: type[T], purpose: str, http: httpx2.Client) -> T:
    try:
        response = http.get(url)
        body = response.read()
    except httpx2.HTTPError as error:
        raise EngineError(f"{url} cannot be reached: {error}") from None
    if response.status_code != 200:
        raise EngineError(f"{url} returned HTTP {response.status_code}")
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise EngineError(f"{url} does not {purpose}") from None


def build_auth_headers(upstream: Upstream, kind: ServerKind | None = None) -> dict[str, str]:
    """Build the authentication headers for an upstream of this kind, with Anthropic's
    version header.
    """
    if kind is not None and kind.wire is Wire.MESSAGES:
        key_header = {} if upstream.key is None else {"x-api-key": upstream.key}
        return {"anthropic-version": ANTHROPIC_VERSION, **key_header}
    return {} if upstream.key is None else {"authorization": f"Bearer {upstream.key}"}
