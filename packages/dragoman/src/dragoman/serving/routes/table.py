"""The table of all routes. A new module of routes must be added here only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from ...core.model_download import ModelPuller
from ...pipeline.recent_prompts import RecentPrompts
from ...pipeline.request_metrics import ModelMetrics
from ..http_metrics import HttpMetrics
from ..key_metrics import KeyMetrics
from ..key_reloader import KeyReloader, KeysExchange
from ..merged_metrics import MetricsExchange
from ..model_downloads import ModelDownloads
from ..port_faults import PortController
from ..route import Route
from . import (
    audio,
    batches,
    chat,
    completions,
    conversations,
    decisions,
    embeddings,
    engine_control,
    explain,
    files,
    gemini,
    health,
    keys,
    llama_cpp,
    message_batches,
    messages,
    metrics,
    model_admin,
    model_list,
    moderations,
    ollama,
    ollama_embeddings,
    ollama_models,
    rerank,
    sglang,
    tgi,
    tokenize,
    ui,
    usage,
    vllm,
    weights,
)
from .openapi import docs_routes
from .responses import create, stored
from .responses.background import BackgroundRuns
from .responses.conversation_locks import ConversationLocks


class Features(Struct, frozen=True):
    """The state of features. Each field is passed only to the routes and workers of its
    feature.

    background: background responses; None if storage is disabled.
    new_batches, new_message_batches: set when a batch has been stored.
    recent_prompts: None unless `explain` is enabled.
    port_controller: None unless the server is simulated.
    puller: downloads models; None if this server does not download models.
    downloads: background downloads; None if `puller` is None.
    ui: whether the page at /ui is served.
    metrics_exchange, keys_exchange: None unless the server has several worker
        processes.
    keys: reads the keys file again; None without one.
    """

    background: BackgroundRuns | None = None
    conversation_locks: ConversationLocks = field(default_factory=ConversationLocks)
    new_batches: asyncio.Event = field(default_factory=asyncio.Event)
    new_message_batches: asyncio.Event = field(default_factory=asyncio.Event)
    recent_prompts: RecentPrompts | None = None
    port_controller: PortController | None = None
    puller: ModelPuller | None = None
    downloads: ModelDownloads | None = None
    key_metrics: KeyMetrics = field(default_factory=KeyMetrics)
    ui: bool = False
    metrics_exchange: MetricsExchange | None = None
    keys: KeyReloader | None = None
    keys_exchange: KeysExchange | None = None


def build_routes(
    features: Features, meters: ModelMetrics, http_metrics: HttpMetrics
) -> Mapping[str, Sequence[Route]]:
    """Build all routes, by the module that declares them. Each path belongs to one
    module.
    """
    groups: dict[str, Sequence[Route]] = {
        "chat": chat.build_routes(),
        "completions": completions.build_routes(),
        "responses.create": create.build_routes(features.background, features.conversation_locks),
        "responses.stored": stored.build_routes(features.background),
        "conversations": conversations.build_routes(),
        "messages": messages.build_routes(),
        "message_batches": message_batches.build_routes(features.new_message_batches),
        "embeddings": embeddings.build_routes(),
        "rerank": rerank.build_routes(),
        "decisions": decisions.build_routes(),
        "moderations": moderations.build_routes(),
        "audio": audio.build_routes(),
        # Before the models list: /v1/models/{model} has any end.
        "gemini": gemini.build_routes(),
        "model_list": model_list.build_routes(),
        "model_admin": model_admin.build_routes(features.puller, features.downloads),
        "files": files.build_routes(),
        "batches": batches.build_routes(features.new_batches),
        "explain": explain.build_routes(features.recent_prompts),
        "tokenize": tokenize.build_routes(),
        "health": health.build_routes(),
        "metrics": metrics.build_routes(
            meters, http_metrics, features.key_metrics, features.metrics_exchange
        ),
        "keys": keys.build_routes(features.keys, features.keys_exchange),
        "usage": usage.build_routes(),
        "tgi": tgi.build_routes(redirects_browsers=features.ui),
        "llama_cpp": llama_cpp.build_routes(),
        "ollama": ollama.build_routes(),
        "ollama_embeddings": ollama_embeddings.build_routes(),
        "ollama_models": ollama_models.build_routes(features.puller),
        "sglang": sglang.build_routes(),
        "vllm": vllm.build_routes(),
        "engine_control": engine_control.build_routes(features.port_controller),
        "weights": weights.build_routes(),
        "ui": ui.build_routes(is_enabled=features.ui),
    }
    described = [route for group in groups.values() for route in group]
    return {**groups, "openapi.docs_routes": docs_routes.build_routes(described)}
