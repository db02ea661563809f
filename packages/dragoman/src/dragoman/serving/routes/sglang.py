"""SGLang's routes for RL trainers or routers, mapped to the operations of vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

from ..._version import VERSION
from ...core.errors import RequestError, Unsupported
from ...dialects.openai_errors import OPENAI_ERRORS
from ...pipeline.engine_backends import EventBackend, TokenBackend
from ..api_description import MODEL, TEXT, ApiResponse, Query, response
from ..auth import Access
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..queried_model import find_queried_model
from ..responder import Responder
from ..route import Route, RouteGroup
from .engine_control import decode_body, find_controls
from .vllm import count_requests, reset_caches
from .weights import SUPPORTED_TRANSFERS_HINT, check_version, find_trainable, find_weights_on_disk

PLAIN_TEXT = (b"content-type", b"text/plain; charset=utf-8")


TRANSFER_PATHS = (
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
)
"""SGLang's transfer channels: pickled tensors, NCCL, CUDA IPC."""


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("SGLang and TGI", OPENAI_ERRORS, Access.ADMIN)
    routes.add(
        "GET",
        "/get_model_info",
        show_model_info,
        "Show the model, as in SGLang",
        response(SglangModelInfo),
        query=(MODEL,),
        access=Access.USER,
    )
    routes.add(
        "GET",
        "/model_info",
        show_model_info,
        "Show the model, as in SGLang",
        response(SglangModelInfo),
        query=(MODEL,),
        access=Access.USER,
    )
    routes.add(
        "GET",
        "/v1/loads",
        show_loads,
        "Count running and waiting requests, as in SGLang",
        response(Loads),
        query=(Query("format", Literal["json"], "Prometheus' format is at /metrics."),),
        access=Access.USER,
    )
    routes.add(
        "GET",
        "/get_weight_version",
        show_weight_version,
        "Show the version of the weights, as in SGLang",
        response(WeightVersion),
        query=(MODEL,),
        tag="Weights",
        access=Access.USER,
    )
    routes.add(
        "POST",
        "/update_weights_from_disk",
        update_from_disk,
        "Update the weights from a directory below --weights-dir",
        response(DiskUpdated),
        bodies=(DiskUpdate,),
        query=(MODEL,),
        tag="Weights",
    )
    for path in TRANSFER_PATHS:
        routes.add(
            "POST",
            path,
            refuse_transfer,
            "Not supported: pickled tensors and process groups",
            tag="Weights",
        )
    routes.add(
        "POST",
        "/pause_generation",
        pause,
        "Pause generation, as in SGLang",
        response(SglangState),
        bodies=(SglangPause,),
        is_body_optional=True,
        query=(MODEL,),
        tag="Administration",
    )
    routes.add(
        "POST",
        "/continue_generation",
        continue_generation,
        "Resume generation, as in SGLang",
        response(SglangState),
        query=(MODEL,),
        tag="Administration",
    )
    routes.add(
        "POST",
        "/abort_request",
        abort,
        "Abort all requests, as in SGLang",
        ApiResponse(media=None, description="Empty."),
        bodies=(SglangAbort,),
        query=(MODEL,),
        tag="Administration",
    )
    routes.add(
        ("GET", "POST"),
        "/flush_cache",
        flush,
        "Clear the prefix cache",
        ApiResponse(media=TEXT),
        ApiResponse(media=TEXT, status=400, description="A part of the cache is in use."),
    )
    routes.add(
        "POST",
        "/release_memory_occupation",
        release,
        "Free the engines' memory",
        response(None),
        bodies=(MemoryTags,),
        is_body_optional=True,
        query=(MODEL,),
        tag="Administration",
    )
    routes.add(
        "POST",
        "/resume_memory_occupation",
        resume,
        "Restore the engines' memory",
        response(None),
        bodies=(MemoryTags,),
        is_body_optional=True,
        query=(MODEL,),
        tag="Administration",
    )
    return routes.build()


async def refuse_transfer(http: HttpRequest) -> JsonResponse | Responder:
    raise Unsupported(
        f"{http.path}: pickled tensors and process groups are not supported; "
        f"{SUPPORTED_TRANSFERS_HINT}."
    )


class SglangModelInfo(Struct, frozen=True):
    """The model as in SGLang. Paths are replaced by model names, to hide the machine's
    directories.
    """

    model_path: str
    served_model_name: str
    tokenizer_path: str
    is_generation: bool
    preferred_sampling_params: None
    weight_version: str | None


async def show_model_info(http: HttpRequest) -> JsonResponse | Responder:
    model = await find_queried_model(http)
    trainable = model.interfaces.trainable
    version = None if trainable is None else trainable.weight_version
    generates = isinstance(model.backend, TokenBackend | EventBackend)
    return JsonResponse(
        msgspec.json.encode(
            SglangModelInfo(model.name, model.name, model.name, generates, None, version)
        )
    )


class RankLoad(Struct, frozen=True):
    """The load of a data-parallel rank, as in SGLang; this server has one rank."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_total_reqs: int
    dp_rank: int = 0


class TotalLoad(Struct, frozen=True):
    total_running_reqs: int
    total_waiting_reqs: int
    total_reqs: int


class Loads(Struct, frozen=True):
    timestamp: str
    version: str
    loads: tuple[RankLoad, ...]
    aggregate: TotalLoad
    dp_rank_count: int = 1


async def show_loads(http: HttpRequest) -> JsonResponse | Responder:
    """Return the number of running and waiting requests of all models.

    SGLang's other sections (`include=`) describe its own queues and memory, and are
    absent.
    """
    if http.query.get("format", "json") != "json":
        raise Unsupported("`format` is `json`; /metrics has Prometheus' format.", param="format")
    running, waiting = count_requests(http)
    total = running + waiting
    loads = Loads(
        datetime.now(UTC).isoformat(),
        VERSION,
        (RankLoad(running, waiting, total),),
        TotalLoad(running, waiting, total),
    )
    return JsonResponse(msgspec.json.encode(loads))


class WeightVersion(Struct, frozen=True):
    weight_version: str


async def show_weight_version(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode(WeightVersion(find_trainable(http)[1].weight_version)))


class DiskUpdate(Struct, frozen=True):
    """The body of an update.

    flush_cache: false is ignored, because cached blocks of the old weights are invalid.
    """

    model_path: str
    load_format: str | None = None
    weight_version: str | None = None
    abort_all_requests: bool = False
    flush_cache: bool = True


class DiskUpdated(Struct, frozen=True):
    success: bool
    message: str
    num_paused_requests: int = 0


async def update_from_disk(http: HttpRequest) -> JsonResponse | Responder:
    _, trainable = find_trainable(http)
    request = await decode_body(http, DiskUpdate)
    if request.load_format not in (None, "auto", "safetensors"):
        raise Unsupported("Only safetensors are supported.", param="load_format")
    weights = find_weights_on_disk(http, request.model_path, "model_path")
    if request.abort_all_requests:
        await _abort_all(http)
    version = await trainable.update_weights(weights, check_version(request.weight_version))
    warnings = (
        ()
        if request.flush_cache
        else (
            "flush_cache is ignored: the cache is always flushed, because it belongs to the old "
            "weights",
        )
    )
    result = DiskUpdated(True, f"Weights updated. Weight version is {version}.")
    return JsonResponse(msgspec.json.encode(result), warnings=warnings)


class SglangPause(Struct, frozen=True):
    mode: str = "abort"


async def pause(http: HttpRequest) -> JsonResponse | Responder:
    """Pause generation. New requests wait in every mode.

    With the mode `abort` running requests end, with `retract` they are recomputed
    later, with `in_place` they continue later.
    """
    mode = (await decode_body(http, SglangPause)).mode
    if mode not in ("abort", "retract", "in_place"):
        raise RequestError("`mode` is `abort`, `retract` or `in_place`.", param="mode")
    for control in find_controls(http):
        # SGLang recomputes retracted requests from their prompts; clearing the cache
        # has this effect.
        await control.pause("keep", clear_cache=mode == "retract")
        if mode == "abort":
            await control.abort_all()
    return JsonResponse(b'{"message":"Generation paused successfully.","status":"ok"}')


async def continue_generation(http: HttpRequest) -> JsonResponse | Responder:
    for control in find_controls(http):
        await control.resume()
    return JsonResponse(b'{"message":"Generation continued successfully.","status":"ok"}')


class SglangAbort(Struct, frozen=True):
    rid: str | None = None
    abort_all: bool = False


async def abort(http: HttpRequest) -> JsonResponse | Responder:
    if not (await decode_body(http, SglangAbort)).abort_all:
        message = "Requests cannot be aborted by id: close a request's connection to abort it."
        raise Unsupported(message, param="rid")
    await _abort_all(http)
    return JsonResponse(b"")


async def _abort_all(http: HttpRequest) -> None:
    for control in find_controls(http):
        await control.abort_all()


async def flush(http: HttpRequest) -> JsonResponse | Responder:
    if not await reset_caches(http):
        return JsonResponse(b"Flush cache failed: a part of it is in use.\n", 400, PLAIN_TEXT)
    return JsonResponse(b"Cache flushed.\n", content_type=PLAIN_TEXT)


class MemoryTags(Struct, frozen=True):
    tags: list[str] | None = None


async def release(http: HttpRequest) -> JsonResponse | Responder:
    """Release GPU memory; running requests continue after `resume`.

    Without tags, weights stay in memory if the engine cannot release them.
    """
    tags = await _read_tags(http)
    warnings: list[str] = []
    for control in find_controls(http):
        try:
            await control.sleep(1 if tags == {"kv_cache"} else 2, "keep")
        except Unsupported as error:
            if tags:
                raise
            await control.sleep(1, "keep")
            warnings.append(f"weights are kept: {error.message}")
    return JsonResponse(b"null", warnings=tuple(warnings))


async def resume(http: HttpRequest) -> JsonResponse | Responder:
    """Restore GPU memory. With the tag `weights` alone the engine sleeps until the next
    update restores them.
    """
    # Memory for the weights is useless before the update that brings them.
    if await _read_tags(http) != {"weights"}:
        for control in find_controls(http):
            await control.wake_up()
    return JsonResponse(b"null")


async def _read_tags(http: HttpRequest) -> set[str]:
    tags = set((await decode_body(http, MemoryTags)).tags or ())
    if tags - {"weights", "kv_cache"}:
        raise Unsupported("`tags` are `weights` and `kv_cache`.", param="tags")
    return tags


class SglangState(Struct, frozen=True):
    message: str
    status: Literal["ok"]
