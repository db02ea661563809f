"""Discovery at startup: an upstream's models, its maximum context and its kind of server."""

from __future__ import annotations

import httpx2
import msgspec
from msgspec import Struct

from ...core.errors import EngineError
from .pool import Upstream
from .server_kinds import ServerKind, find_kind


class DiscoveredModel(Struct, frozen=True):
    """A model of an upstream. max_model_len: tokens; None if the upstream does not report it."""

    model: str
    kind: ServerKind
    max_model_len: int | None


class _Meta(Struct):
    n_ctx_train: int | None = None


class _Model(Struct):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None
    meta: _Meta | None = None


class _Models(Struct):
    data: list[_Model]


def discover(upstream: Upstream, model: str | None, *, client: httpx2.Client | None = None) -> DiscoveredModel:
    """Query an upstream's models. Blocking. model: its name; None selects the first one. Raises EngineError."""
    models = _list_models(upstream, client or httpx2.Client(timeout=10.0))
    chosen = next((candidate for candidate in models if model in (None, candidate.id)), None)
    if chosen is None:
        names = ", ".join(candidate.id for candidate in models[:20])
        raise EngineError(f"{upstream.url} has no model {model!r}. It has: {names or 'none'}")
    limit = chosen.max_model_len
    if limit is None and chosen.meta is not None:
        limit = chosen.meta.n_ctx_train
    return DiscoveredModel(chosen.id, find_kind(chosen.owned_by or ""), limit)


def _list_models(upstream: Upstream, client: httpx2.Client) -> list[_Model]:
    url = f"{upstream.url}/models"
    try:
        with client:
            response = client.get(url, headers=build_auth_headers(upstream))
            body = response.read()
    except httpx2.HTTPError as error:
        raise EngineError(f"{url} cannot be reached: {error}") from None
    if response.status_code != 200:
        raise EngineError(f"{url} returned HTTP {response.status_code}")
    try:
        return msgspec.json.decode(body, type=_Models).data
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise EngineError(f"{url} does not list models as OpenAI's API does") from None


def build_auth_headers(upstream: Upstream) -> dict[str, str]:
    return {} if upstream.key is None else {"authorization": f"Bearer {upstream.key}"}
