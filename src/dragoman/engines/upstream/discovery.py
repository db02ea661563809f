"""Discovery at startup: an upstream's models, its maximum context, its kind of server and what the model is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import httpx2
import msgspec
from msgspec import Struct

from ...core.embeddings import EncodingTask
from ...core.errors import EngineError
from .pool import Upstream
from .server_kinds import KINDS, ServerKind, find_kind

T = TypeVar("T")


class ModelTasks(Struct, frozen=True):
    """What a model is for. encoding: besides generation, or instead of it."""

    generates: bool = True
    encoding: frozenset[EncodingTask] = frozenset()


class DiscoveredModel(Struct, frozen=True):
    """A model of an upstream.

    max_model_len: tokens; None if the upstream does not report it.
    adapters: names of the adapters (LoRA) that it has loaded.
    """

    model: str
    kind: ServerKind
    max_model_len: int | None
    tasks: ModelTasks = ModelTasks()
    adapters: tuple[str, ...] = ()


class _Meta(Struct):
    n_ctx_train: int | None = None


class _Details(Struct):
    capabilities: list[str] | None = None


class _Model(Struct):
    id: str
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
    kind, tasks: None asks the upstream: for tasks with a text of one letter, if its list of models does not say.
    """
    with client or httpx2.Client(timeout=10.0, headers=build_auth_headers(upstream)) as http:
        if kind is KINDS["tei"]:
            return _discover_tei(upstream, model, tasks, http)
        models = _fetch(f"{upstream.url}/models", _Models, "list models as OpenAI's API does", http).data
        chosen = next((candidate for candidate in models if model in (None, candidate.id)), None)
        if chosen is None:
            names = ", ".join(candidate.id for candidate in models[:20])
            raise EngineError(f"{upstream.url} has no model {model!r}. It has: {names or 'none'}")
        kind = kind or find_kind(chosen.owned_by or "")
        limit = chosen.max_model_len
        if limit is None and chosen.meta is not None:
            # llama.cpp's list has no max_model_len, only what the model was trained for.
            limit = chosen.meta.n_ctx_train
        if tasks is None and chosen.dragoman is not None and chosen.dragoman.capabilities:
            capabilities = chosen.dragoman.capabilities
            encoding = frozenset(task for task in EncodingTask if task.value in capabilities)
            tasks = ModelTasks("generation" in capabilities or not encoding, encoding)
        elif tasks is None:
            tasks = _try_tasks(upstream, chosen.id, kind, http)
    adapters = tuple(candidate.id for candidate in models if candidate.parent == chosen.id)
    return DiscoveredModel(chosen.id, kind, limit, tasks, adapters)


def _discover_tei(
    upstream: Upstream, model: str | None, tasks: ModelTasks | None, http: httpx2.Client
) -> DiscoveredModel:
    # TEI's own routes lie beside its OpenAI-compatible ones.
    url = f"{upstream.url.removesuffix('/v1')}/info"
    info = _fetch(url, _TeiInfo, "describe a model as Text Embeddings Inference does", http)
    by_type = {"embedding": EncodingTask.EMBEDDINGS, "reranker": EncodingTask.SCORING}
    encoding = frozenset(task for name, task in by_type.items() if name in info.model_type)
    if tasks is None and not encoding:
        raise EngineError(f"{url}: the model neither embeds nor reranks: {', '.join(info.model_type)}")
    return DiscoveredModel(
        model or info.model_id, KINDS["tei"], info.max_input_length, tasks or ModelTasks(False, encoding)
    )


def _try_tasks(upstream: Upstream, model: str, kind: ServerKind, http: httpx2.Client) -> ModelTasks:
    """Find the tasks of a server that loads one model and does not say what it is for. A server of many models may
    bill, or load a model for this, so it is not tried.
    """
    if not kind.has_one_task:
        return ModelTasks()
    base = upstream.url.removesuffix("/v1")
    scoring: tuple[str, dict[str, object]] = (f"{upstream.url}/rerank", {"query": "a", "documents": ["a"]})
    if kind.has_encoding_options:
        scoring = (f"{base}/score", {"text_1": "a", "text_2": "a"})
    trials = (
        (EncodingTask.EMBEDDINGS, f"{upstream.url}/embeddings", {"input": "a"}),
        (EncodingTask.SCORING, *scoring),
    )
    for task, url, fields in trials:
        if _accepts(url, {"model": model, **fields}, http):
            return ModelTasks(False, frozenset({task}))
    return ModelTasks()


def _accepts(url: str, body: Mapping[str, object], http: httpx2.Client) -> bool:
    try:
        return http.post(url, json=body).status_code == 200
    except httpx2.HTTPError:
        return False


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


def build_auth_headers(upstream: Upstream) -> dict[str, str]:
    return {} if upstream.key is None else {"authorization": f"Bearer {upstream.key}"}
