"""Discovery of an upstream at startup: its models, their limits, their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import Struct

from dragoman_http import (
    BlockingHttpClient,
    ClientTimeouts,
    HttpClient,
    HttpClientError,
    HttpTransport,
)

from ...core.encoder_requests import EncodingTask
from ...core.errors import EngineError
from .gemini_request import name_model
from .server_kinds import KINDS, ServerKind, find_kind, find_kind_by_host
from .upstream_server import Upstream, build_auth_headers

T = TypeVar("T")
_TIMEOUT = 10.0
"""Seconds for a connection, and without any byte of a response."""
_MAX_BODY_BYTES = 64 << 20
"""Of a list of models."""


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


class _GeminiModel(Struct):
    """A model in Google's list. name: begins with `models/`."""

    name: str
    inputTokenLimit: int | None = None
    outputTokenLimit: int | None = None
    supportedGenerationMethods: list[str] = []


class _GeminiModels(Struct):
    models: list[_GeminiModel]


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
    transport: HttpTransport | None = None,
) -> DiscoveredModel:
    """Query an upstream's models. Blocking. Raises EngineError.

    model: its name; None selects the first one.
    kind: None detects it.
    tasks: None detects them, if necessary with requests for a text of one letter.
    transport: sends the requests; None means the network. It is closed.
    """
    # Before any request: Anthropic's API rejects requests without its version header,
    # even for the list of models.
    kind = kind or find_kind_by_host(upstream.url)
    with BlockingHttpClient(transport or HttpClient(ClientTimeouts(_TIMEOUT, _TIMEOUT))) as client:
        queries = _Queries(client, build_auth_headers(upstream, kind))
        if kind is KINDS["tei"]:
            return _discover_tei(upstream, model, tasks, queries)
        if kind is KINDS["gemini"]:
            return _discover_gemini(upstream, model, tasks, queries)
        url = f"{upstream.url}/models"
        purpose = "list models as OpenAI's API does"
        try:
            models = queries.fetch(url, _Models, purpose).data
        except EngineError:
            if kind is not None or not _speaks_anthropic(url, queries):
                raise
            kind = KINDS["anthropic"]
            queries = _Queries(client, build_auth_headers(upstream, kind))
            models = queries.fetch(url, _Models, purpose).data
        listed = next((candidate for candidate in models if model in (None, candidate.id)), None)
        if listed is None:
            raise _build_unlisted_error(upstream, model, [candidate.id for candidate in models])
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
            tasks = _try_tasks(upstream, listed.id, kind, queries)
    adapters = tuple(candidate.id for candidate in models if candidate.parent == listed.id)
    return DiscoveredModel(listed.id, kind, limit, tasks, adapters, listed.max_tokens)


class _AnthropicErrorDetail(Struct):
    type: str


class _AnthropicError(Struct, tag_field="type", tag="error"):
    """Anthropic's error envelope."""

    error: _AnthropicErrorDetail


class _Queries:
    """Queries to a server, with the headers of its kind."""

    def __init__(self, client: BlockingHttpClient, headers: dict[str, str]) -> None:
        self._client = client
        self._headers = headers

    def send(
        self, method: str, url: str, fields: dict[str, object] | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the body of a response. Raises HttpClientError."""
        headers = self._headers
        body = b""
        if fields is not None:
            headers = {**headers, "content-type": "application/json"}
            body = msgspec.json.encode(fields)
        with self._client.send(method, url, headers, body) as response:
            return response.status, response.read_all(_MAX_BODY_BYTES)

    def fetch(self, url: str, type: type[T], purpose: str) -> T:
        try:
            status, body = self.send("GET", url)
        except (HttpClientError, ValueError) as error:
            raise EngineError(f"{url} cannot be reached: {error}") from None
        if status != 200:
            raise EngineError(f"{url} returned HTTP {status}")
        try:
            return msgspec.json.decode(body, type=type)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise EngineError(f"{url} does not {purpose}") from None


def _speaks_anthropic(url: str, queries: _Queries) -> bool:
    """Whether a server rejects an OpenAI-style request with Anthropic's error envelope,
    since it lacks its headers.
    """
    try:
        status, body = queries.send("GET", url)
        if status in (400, 401, 403):
            msgspec.json.decode(body, type=_AnthropicError)
            return True
    except (HttpClientError, msgspec.MsgspecError, ValueError):
        # The caller raises the error of its own request.
        return False
    return False


def _discover_tei(
    upstream: Upstream, model: str | None, tasks: ModelTasks | None, queries: _Queries
) -> DiscoveredModel:
    # TEI's own routes are at the root, its OpenAI-compatible ones below `/v1`.
    url = f"{upstream.url.removesuffix('/v1')}/info"
    info = queries.fetch(url, _TeiInfo, "describe a model as Text Embeddings Inference does")
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


def _discover_gemini(
    upstream: Upstream, model: str | None, tasks: ModelTasks | None, queries: _Queries
) -> DiscoveredModel:
    url = f"{upstream.url}/models?pageSize=1000"
    models = queries.fetch(url, _GeminiModels, "list models as Gemini's API does").models
    wanted = None if model is None else name_model(model)
    listed = next((candidate for candidate in models if wanted in (None, candidate.name)), None)
    if listed is None:
        raise _build_unlisted_error(upstream, model, [candidate.name for candidate in models])
    methods = listed.supportedGenerationMethods
    if tasks is None and "embedContent" in methods:
        encoding = frozenset({EncodingTask.EMBEDDINGS})
        tasks = ModelTasks("generateContent" in methods, encoding)
    return DiscoveredModel(
        model or listed.name.removeprefix("models/"),
        KINDS["gemini"],
        listed.inputTokenLimit,
        tasks or ModelTasks(),
        max_tokens=listed.outputTokenLimit,
    )


def _build_unlisted_error(
    upstream: Upstream, model: str | None, names: Sequence[str]
) -> EngineError:
    listed = ", ".join(names[:20])
    return EngineError(f"{upstream.url} has no model {model!r}. It has: {listed or 'none'}")


def _try_tasks(upstream: Upstream, model: str, kind: ServerKind, queries: _Queries) -> ModelTasks:
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
        with suppress(HttpClientError):
            if queries.send("POST", url, {"model": model, **fields})[0] == 200:
                return ModelTasks(False, frozenset({task}))
    return ModelTasks()
