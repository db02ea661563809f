"""Discovery of an upstream at startup: its models, their limits, their tasks."""

from __future__ import annotations

from contextlib import suppress

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
from .anthropic_kind import ANTHROPIC
from .server_kind import ServerKind
from .server_kinds import find_kind, find_kind_by_url
from .upstream_models import ModelQueries, ModelTasks, UpstreamModel
from .upstream_server import Upstream, build_auth_headers

_TIMEOUT = 10.0
"""Seconds for a connection, and without any byte of a response."""


class DiscoveredModel(UpstreamModel, frozen=True, kw_only=True):
    """A model of an upstream, and the kind of its server."""

    kind: ServerKind


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
    kind = kind or find_kind_by_url(upstream.url)
    with BlockingHttpClient(transport or HttpClient(ClientTimeouts(_TIMEOUT, _TIMEOUT))) as client:
        queries = ModelQueries(client, upstream.url, build_auth_headers(upstream, kind))
        if kind is not None and kind.find_model is not None:
            found = kind.find_model(model, tasks, queries)
            return DiscoveredModel(
                found.model,
                found.max_model_len,
                found.tasks,
                found.adapters,
                found.max_tokens,
                kind=kind,
            )
        url = f"{upstream.url}/models"
        purpose = "list models as OpenAI's API does"
        try:
            models = queries.fetch(url, _Models, purpose).data
        except EngineError:
            if kind is not None or not _speaks_anthropic(url, queries):
                raise
            kind = ANTHROPIC
            queries = ModelQueries(client, upstream.url, build_auth_headers(upstream, kind))
            models = queries.fetch(url, _Models, purpose).data
        listed = next((candidate for candidate in models if model in (None, candidate.id)), None)
        if listed is None:
            raise queries.build_unlisted_error(model, [candidate.id for candidate in models])
        # Only Anthropic lists models without OpenAI's fields; servers with both APIs
        # have them.
        if (
            kind is None
            and listed.type == "model"
            and listed.object is None
            and listed.owned_by is None
        ):
            kind = ANTHROPIC
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
    return DiscoveredModel(listed.id, limit, tasks, adapters, listed.max_tokens, kind=kind)


class _AnthropicErrorDetail(Struct):
    type: str


class _AnthropicError(Struct, tag_field="type", tag="error"):
    """Anthropic's error envelope."""

    error: _AnthropicErrorDetail


def _speaks_anthropic(url: str, queries: ModelQueries) -> bool:
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


def _try_tasks(
    upstream: Upstream, model: str, kind: ServerKind, queries: ModelQueries
) -> ModelTasks:
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
