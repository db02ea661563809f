"""vLLM's utility routes, for evaluation tools, load generators, RL trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from ..._version import VERSION
from ...core.errors import RequestError
from ...dialects.openai_errors import OPENAI_ERRORS, OpenAIErrorBody
from ...dialects.vllm_generate.reader import read_generate
from ...dialects.vllm_generate.response_schemas import GeneratedTokens, GeneratedTokensChunk
from ...dialects.vllm_generate.wire import GENERATE_REQUEST
from ...pipeline.served_model import ServedModel
from ..api_description import EVENTS, MODEL, Query, response
from ..auth import Access
from ..generation_handler import build_generation_handler
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..queried_model import find_queried_model
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup


def build_routes() -> Sequence[Route]:
    """Build the routes; those that describe or change the whole server require an
    administrator's key.
    """
    routes = RouteGroup("Server", OPENAI_ERRORS)
    routes.add(
        "POST",
        "/inference/v1/generate",
        build_generation_handler(read_generate),
        "Generate tokens from tokens, as in vLLM",
        response(GeneratedTokens),
        response(GeneratedTokensChunk, OpenAIErrorBody, media=EVENTS),
        bodies=(GENERATE_REQUEST,),
        generates=True,
        tag="Tokens",
        cost=RequestCost.CALL,
    )
    routes.add(
        "GET", "/load", show_load, "Count waiting and running requests", response(ServerLoad)
    )
    routes.add(
        "GET",
        "/get_world_size",
        show_world_size,
        "Show the number of processes",
        response(WorldSize),
    )
    routes.add(
        "GET",
        "/server_info",
        show_server_info,
        "Show the server's settings",
        response(ServerInfo),
        query=(
            MODEL,
            Query(
                "config_format",
                Literal["text", "json"],
                "Whether vLLM's part is a string or an object.",
            ),
        ),
        tag="Administration",
        access=Access.ADMIN,
    )
    routes.add(
        "POST",
        "/reset_prefix_cache",
        reset_prefix_cache,
        "Clear the prefix cache",
        response(CacheReset),
        tag="Administration",
        access=Access.ADMIN,
    )
    return routes.build()


class ServerLoad(Struct, frozen=True):
    server_load: int


async def show_load(http: HttpRequest) -> JsonResponse | Responder:
    """Return the number of waiting and running requests of all models."""
    return JsonResponse(msgspec.json.encode(ServerLoad(sum(count_requests(http)))))


def count_requests(http: HttpRequest) -> tuple[int, int]:
    """Return the numbers of running and of waiting requests of all models."""
    models = list(http.service.models)
    states = [engine.health() for model in models for engine in model.engines]
    n_held = sum(model.queues.generation.n_held + model.queues.encoding.n_held for model in models)
    return sum(state.running for state in states), n_held + sum(state.waiting for state in states)


async def show_world_size(_: HttpRequest) -> JsonResponse | Responder:
    """Return the number of processes that share the model: always 1."""
    return JsonResponse(b'{"world_size":1}')


class CacheReset(Struct, frozen=True):
    success: bool


class VllmModelInfo(Struct, frozen=True):
    model: str
    served_model_name: tuple[str, ...]
    max_model_len: int
    features: tuple[str, ...]
    logprobs_mode: str = "raw_logprobs"


class VllmParallel(Struct, frozen=True):
    world_size: int = 1
    data_parallel_size: int = 1


class VllmConfig(Struct, frozen=True):
    """The subset of vLLM's configuration that applies here, with vLLM's names."""

    model_config: VllmModelInfo
    parallel_config: VllmParallel
    weight_transfer_config: None = None


class ServerSettings(Struct, frozen=True):
    """The server's settings without keys, paths and environment."""

    version: str
    profile: str
    strict: bool
    max_logprobs: int
    max_body_bytes: int
    models: tuple[VllmModelInfo, ...]


class ServerInfo(Struct, frozen=True):
    vllm_config: VllmConfig | str
    dragoman: ServerSettings


async def show_server_info(http: HttpRequest) -> JsonResponse | Responder:
    """Return the configuration of a model and of the server.

    The query parameter `config_format` is `text` (default) or `json`.
    """
    config_format = http.query.get("config_format") or "text"
    if config_format not in ("text", "json"):
        raise RequestError("`config_format` must be `text` or `json`.", param="config_format")
    config = VllmConfig(_build_model_info(await find_queried_model(http)), VllmParallel())
    vllm_config = config if config_format == "json" else msgspec.json.encode(config).decode()
    options = http.service.options
    settings = ServerSettings(
        VERSION,
        options.profile.value,
        options.strict,
        options.max_logprobs,
        options.max_body_bytes,
        tuple(map(_build_model_info, http.service.models)),
    )
    return JsonResponse(msgspec.json.encode(ServerInfo(vllm_config, settings)))


def _build_model_info(model: ServedModel) -> VllmModelInfo:
    features = sorted(feature.value for feature in model.capabilities.features)
    return VllmModelInfo(
        model.name, (model.name, *model.aliases), model.max_model_len, tuple(features)
    )


async def reset_prefix_cache(http: HttpRequest) -> JsonResponse | Responder:
    """Reset the prefix caches; running requests continue."""
    return JsonResponse(msgspec.json.encode(CacheReset(await reset_caches(http))))


async def reset_caches(http: HttpRequest) -> bool:
    """Reset all prefix caches; False if blocks in use were retained, as in vLLM."""
    caches = [model.interfaces.cache for model in http.service.models]
    # A list, not a generator: every cache is reset even if one fails.
    return all(
        [await cache.reset_prefix_cache() is not False for cache in caches if cache is not None]
    )


class WorldSize(Struct, frozen=True):
    """The number of processes that hold a part of the model."""

    world_size: int
