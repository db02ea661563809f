"""Routes that control engines: pause, sleep, wake up, abort."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from ...core.engine_control import EngineControl, PauseMode
from ...core.errors import NotFound, PermissionDenied, RequestError, Unsupported
from ...core.scriptable_engine import Scriptable
from ...core.simulated_engine import MetricOverrides, SimulationState
from ...dialects.openai_errors import OPENAI_ERRORS
from ...dialects.request_body import check_text, translate_error
from ...pipeline.lora_adapters import Adapter
from ..api_description import MODEL, TEXT, ApiResponse, Query, response
from ..auth import Access
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..port_faults import PortCommand, PortController, PortState
from ..queried_model import select_queried_models
from ..request_log import RequestLogLine
from ..responder import Responder
from ..route import Route, RouteGroup

T = TypeVar("T")


async def decode_body(http: HttpRequest, body_type: type[T]) -> T:
    """Decode a JSON body; an empty body counts as `{}`.

    Raises:
        RequestError: the body is invalid.
    """
    data = await http.read_json() or b"{}"
    try:
        check_text(data)
        return msgspec.json.decode(data, type=body_type)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise translate_error(error, data) from None


def resolve_path_below(root: str | None, path: str, flag: str, param: str) -> Path:
    """Return the absolute path of a file or directory that a request names, below the
    operator's directory.

    root: the operator's directory; None permits no path.
    flag: the option that sets `root`.
    param: the field of the request that errors name.

    Raises:
        PermissionDenied: the path is not below the directory, or no directory is set.
        RequestError: the path does not exist.
    """
    if root is None:
        raise PermissionDenied(
            f"Nothing is loaded from disk at run time: {flag} is not set.", param=param
        )
    if "\0" in path:
        raise RequestError("A path cannot contain NUL.", param=param)
    # Resolved first, so that neither `..` nor a link leads out of the directory.
    location = (Path(root) / path).resolve()
    if not location.is_relative_to(Path(root).resolve()):
        raise PermissionDenied(f"This path is not under {flag}.", param=param)
    # Unlike Path.exists, it raises no error for a name that is too long.
    if not os.path.exists(location):
        raise RequestError("This path does not exist.", param=param, code="not_found")
    return location


MAX_WARNINGS = 8
MAX_WARNING_LENGTH = 200
"""Characters; limited because warnings repeat names of unknown fields from the request.
"""

_MODE = Query(
    "mode",
    Literal["abort", "wait", "keep"],
    "The handling of running requests; the default is `abort`.",
)


def build_routes(port_controller: PortController | None) -> Sequence[Route]:
    """Build the routes, with vLLM's paths where vLLM has them.

    port_controller: None unless the server is simulated.
    """
    routes = RouteGroup("Administration", OPENAI_ERRORS, Access.ADMIN)
    routes.add(
        "POST",
        "/sleep",
        sleep,
        "Free the memory of the engines",
        response(SleepResult),
        query=(
            Query("level", Literal["0", "1", "2"], "0 only pauses; 2 also drops weights."),
            _MODE,
            MODEL,
        ),
    )
    routes.add(
        "POST",
        "/wake_up",
        wake_up,
        "Wake the engines",
        response(WakeResult),
        query=(
            Query(
                "tags",
                Literal["weights", "kv_cache", "scheduling"],
                "The parts to wake; default: all.",
                is_list=True,
            ),
            MODEL,
        ),
    )
    routes.add(
        "GET",
        "/is_sleeping",
        is_sleeping,
        "Show whether an engine sleeps",
        response(SleepState),
        query=(MODEL,),
    )
    routes.add(
        "POST",
        "/pause",
        pause,
        "Pause generation",
        response(StateName),
        query=(
            _MODE,
            Query("clear_cache", Literal["true", "false"], "Whether caches are cleared."),
            MODEL,
        ),
    )
    routes.add("POST", "/resume", resume, "Resume generation", response(StateName), query=(MODEL,))
    routes.add(
        "GET",
        "/is_paused",
        is_paused,
        "Show whether an engine is paused",
        response(PauseState),
        query=(MODEL,),
    )
    routes.add(
        "POST",
        "/abort_requests",
        abort,
        "Abort all requests",
        response(AbortResult),
        bodies=(AbortBody,),
        is_body_optional=True,
        query=(MODEL,),
    )
    routes.add("POST", "/collective_rpc", refuse_rpc, "Not supported: calls of methods by name")
    routes.add(
        "POST",
        "/v1/load_lora_adapter",
        load_adapter,
        "Load an adapter",
        ApiResponse(media=TEXT),
        bodies=(AdapterLoad,),
    )
    routes.add(
        "POST",
        "/v1/unload_lora_adapter",
        unload_adapter,
        "Unload an adapter",
        ApiResponse(media=TEXT),
        bodies=(AdapterUnload,),
    )
    routes.add(
        "POST",
        "/dragoman/reply",
        enqueue_reply,
        "Enqueue a scripted reply",
        ApiResponse(media=None, status=204, description="The reply is in the queue."),
        query=(MODEL,),
        description="The body is a reply, as in docs/scripted.md.",
        tag="Simulation",
    )
    routes.add(
        "GET",
        "/dragoman/faults",
        show_faults,
        "List the injected faults",
        response(list[dict[str, Any]]),
        query=(MODEL,),
        tag="Simulation",
    )
    routes.add(
        ("PUT", "POST"),
        "/dragoman/faults",
        set_faults,
        "Replace the injected faults",
        response(list[dict[str, Any]]),
        query=(MODEL,),
        description="The body is a list of faults.",
        tag="Simulation",
    )
    routes.add(
        "GET",
        "/dragoman/requests",
        list_requests,
        "List the last requests without their content (--ui)",
        response(RequestSummaries),
    )
    routes.add(
        "GET",
        "/dragoman/simulator",
        show_simulation,
        "Show the simulated models",
        response(SimulatedModels),
        tag="Simulation",
    )
    routes.add(
        ("PUT", "POST"),
        "/dragoman/simulator",
        change_simulation,
        "Change the speed, the latency or the metrics of simulated models",
        response(SimulatedModels),
        bodies=(SimulationChange,),
        tag="Simulation",
    )
    routes.add(
        "GET",
        "/dragoman/listener",
        partial(show_ports, port_controller),
        "List the ports with their states",
        response(PortStates),
        tag="Simulation",
    )
    routes.add(
        ("PUT", "POST"),
        "/dragoman/listener",
        partial(apply_port_commands, port_controller),
        "Close, reset or open ports",
        response(PortStates),
        bodies=(PortCommand,),
        tag="Simulation",
    )
    return routes.build()


def find_controls(http: HttpRequest) -> list[EngineControl]:
    """Return the controls of all models, or of the model in the query.

    Raises:
        NotFound: no engine supports control.
    """
    interfaces = [model.interfaces for model in select_queried_models(http)]
    controls = [each.control for each in interfaces if each.control is not None]
    if not controls:
        raise NotFound(
            "This server's engine does not support control operations.", code="unsupported_endpoint"
        )
    return controls


def _find_scriptables(http: HttpRequest) -> list[Scriptable]:
    """Return the scriptable engines of all models, or of the model in the query. Raises
    as `find_controls`.
    """
    interfaces = [model.interfaces for model in select_queried_models(http)]
    scriptables = [each.scriptable for each in interfaces if each.scriptable is not None]
    if not scriptables:
        raise NotFound(
            "This server's engine does not support scripted replies.", code="unsupported_endpoint"
        )
    return scriptables


def _parse_mode(http: HttpRequest) -> PauseMode:
    match http.query.get("mode", "abort"):
        case "abort" | "wait" | "keep" as mode:
            return mode
        case _:
            raise RequestError("`mode` is `abort`, `wait` or `keep`.", param="mode")


class SleepResult(Struct, frozen=True):
    status: str
    level: int


async def sleep(http: HttpRequest) -> JsonResponse | Responder:
    """Put the engines to sleep. Level 0 only pauses."""
    level = http.query.get("level", "1")
    mode = _parse_mode(http)
    if level not in ("0", "1", "2"):
        raise RequestError("`level` is 0, 1 or 2.", param="level")
    for control in find_controls(http):
        await control.sleep(int(level), mode)
    return JsonResponse(msgspec.json.encode(SleepResult("sleeping", int(level))))


async def wake_up(http: HttpRequest) -> JsonResponse | Responder:
    """Wake the engines.

    vLLM's tags wake parts of an engine. Here memory is restored on demand, so the whole
    engine wakes, unless the only tag is `weights`.
    """
    tags = http.query.getlist("tags")
    unknown_tags = set(tags) - {"weights", "kv_cache", "scheduling"}
    if unknown_tags:
        raise RequestError("`tags` are `weights`, `kv_cache` and `scheduling`.", param="tags")
    # Without the KV cache the engine cannot run, so it stays asleep.
    if tags == ["weights"]:
        return JsonResponse(b'{"status":"sleeping","tags":["weights"]}')
    for control in find_controls(http):
        await control.wake_up()
    return JsonResponse(b'{"status":"awake","tags":%s}' % msgspec.json.encode(tags or None))


class SleepState(Struct, frozen=True):
    is_sleeping: bool


async def is_sleeping(http: HttpRequest) -> JsonResponse | Responder:
    """Return whether any engine sleeps or, as in vLLM, is paused."""
    is_any_asleep = any(control.sleep_level or control.is_paused for control in find_controls(http))
    return JsonResponse(msgspec.json.encode(SleepState(is_any_asleep)))


async def pause(http: HttpRequest) -> JsonResponse | Responder:
    mode = _parse_mode(http)
    clear_cache = http.query.get("clear_cache", "true").lower() != "false"
    for control in find_controls(http):
        await control.pause(mode, clear_cache=clear_cache)
    return JsonResponse(b'{"status":"paused"}')


async def resume(http: HttpRequest) -> JsonResponse | Responder:
    for control in find_controls(http):
        await control.resume()
    return JsonResponse(b'{"status":"resumed"}')


class PauseState(Struct, frozen=True):
    is_paused: bool


async def is_paused(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(
        msgspec.json.encode(PauseState(any(control.is_paused for control in find_controls(http))))
    )


class AbortBody(Struct, frozen=True):
    request_ids: list[str] | None = None


class AbortResult(Struct, frozen=True):
    status: str
    aborted: int


async def abort(http: HttpRequest) -> JsonResponse | Responder:
    """Abort all waiting and running sequences, which return their partial output.

    The response counts the aborted sequences, of which a request can have several.
    """
    if (await decode_body(http, AbortBody)).request_ids:
        message = "Requests cannot be aborted by id: close a request's connection to abort it."
        raise Unsupported(message, param="request_ids")
    count = sum([await control.abort_all() for control in find_controls(http)])
    return JsonResponse(msgspec.json.encode(AbortResult("aborted", count)))


async def refuse_rpc(_: HttpRequest) -> JsonResponse | Responder:
    # Calling a method by its name would be remote code execution (LiteLLM
    # CVE-2026-42271).
    message = "Methods cannot be called by name; use the routes /pause, /sleep and /update_weights."
    raise Unsupported(message, param="method")


async def enqueue_reply(http: HttpRequest) -> JsonResponse | Responder:
    """Enqueue a scripted reply; each reply answers one later request, in order."""
    reply = await decode_body(http, object)
    for scriptable in _find_scriptables(http):
        scriptable.enqueue_reply(reply)
    return JsonResponse(b"", 204)


async def set_faults(http: HttpRequest) -> JsonResponse | Responder:
    faults = await decode_body(http, object)
    for scriptable in _find_scriptables(http):
        scriptable.set_faults(faults)
    return await show_faults(http)


async def show_faults(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(_find_scriptables(http)[0].get_faults().encode())


class AdapterLoad(Struct, frozen=True):
    """The body of /v1/load_lora_adapter, as in vLLM.

    base_model_name: the model that gets the adapter; None means the first model that
        supports adapters.
    """

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class AdapterUnload(Struct, frozen=True):
    lora_name: str
    lora_int_id: int | None = None


async def load_adapter(http: HttpRequest) -> JsonResponse | Responder:
    request = await decode_body(http, AdapterLoad)
    if not request.lora_name or not request.lora_path:
        raise RequestError("Both `lora_name` and `lora_path` must be given.", param="lora_name")
    # Python's file functions raise ValueError for NUL, which would become a 500.
    if "\0" in request.lora_path:
        raise RequestError("A path cannot contain NUL.", param="lora_path")
    models = http.service.models
    if request.base_model_name is None:
        loaded_models = list(models) or [models.find_loaded(models.slots[0].name)]
        base = next(
            (model for model in loaded_models if model.adapters is not None), loaded_models[0]
        )
    else:
        base = models.find_loaded(request.base_model_name)
    path = request.lora_path
    if base.adapters is not None and base.adapters.reads_files:
        path = str(
            resolve_path_below(http.service.options.lora_dir, path, "--lora-dir", "lora_path")
        )
    await models.load_adapter(base, Adapter(request.lora_name, path), replace=request.load_inplace)
    return _render_text(f"Success: LoRA adapter '{request.lora_name}' added successfully.")


async def unload_adapter(http: HttpRequest) -> JsonResponse | Responder:
    request = await decode_body(http, AdapterUnload)
    await http.service.models.unload_adapter(request.lora_name)
    return _render_text(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")


def _render_text(text: str) -> JsonResponse:
    return JsonResponse(text.encode(), content_type=(b"content-type", b"text/plain; charset=utf-8"))


class PortStates(Struct, frozen=True):
    ports: Sequence[PortState]


async def show_ports(controller: PortController | None, _: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode(PortStates(_require_controller(controller).states())))


async def apply_port_commands(
    controller: PortController | None, http: HttpRequest
) -> JsonResponse | Responder:
    """Apply one command or a list of them."""
    required, body = _require_controller(controller), await decode_body(http, object)
    try:
        commands = msgspec.convert(body if isinstance(body, list) else [body], list[PortCommand])
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from None
    await required.apply(commands, http.client)
    return await show_ports(required, http)


def _require_controller(controller: PortController | None) -> PortController:
    if controller is None:
        raise NotFound(
            "Only a simulated server on a port supports listener states.",
            code="unsupported_endpoint",
        )
    return controller


class RecentRequestItem(RequestLogLine, kw_only=True):
    """A line of the request log with warnings. The request is running if it has neither
    `latency_s` nor `error`.

    warnings: the parts of the request that were ignored.
    """

    warnings: list[str]


class RecentRequestList(Struct, frozen=True):
    object: str
    data: list[RecentRequestItem]


async def list_requests(http: HttpRequest) -> JsonResponse | Responder:
    """List the recent requests, newest first: the fields of a line of the request log,
    and `warnings`.
    """
    recent_requests = http.service.generation.recent_requests
    if recent_requests is None:
        raise NotFound(
            "The last requests are remembered only for the page (--ui).",
            code="unsupported_endpoint",
        )
    data: list[RecentRequestItem] = []
    for request in recent_requests.iterate_newest_first():
        fields = msgspec.structs.asdict(request.line)
        fields["output_tokens"] = request.output_tokens
        warnings = [warning[:MAX_WARNING_LENGTH] for warning in request.warnings[:MAX_WARNINGS]]
        data.append(RecentRequestItem(**fields, warnings=warnings))
    return JsonResponse(msgspec.json.encode(RecentRequestList("list", data)))


class SimulatedModel(SimulationState, frozen=True, kw_only=True):
    model: str


class SimulatedModelList(Struct, frozen=True):
    object: str
    data: list[SimulatedModel]


async def show_simulation(http: HttpRequest) -> JsonResponse | Responder:
    """List the simulated models with the speed of their time; the list may be empty."""
    data = [
        SimulatedModel(
            **msgspec.structs.asdict(model.interfaces.simulation.get_simulation()), model=model.name
        )
        for model in http.service.models
        if model.interfaces.simulation is not None
    ]
    return JsonResponse(msgspec.json.encode(SimulatedModelList("list", data)))


class SimulationChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of simulated models. What is None stays as it is.

    time_scale: speed of simulated time; 10 is ten times as fast.
    latency: coefficients of a step's duration; the others stay as they are.
    metrics: values of metrics in place of the simulated state; {} is the state again.
    model: the affected model; None means all simulated models.
    """

    time_scale: Annotated[float, Meta(ge=0.001, le=1_000_000)] | None = None
    latency: dict[str, object] | None = None
    metrics: MetricOverrides | None = None
    model: str | None = None


async def change_simulation(http: HttpRequest) -> JsonResponse | Responder:
    change = await decode_body(http, SimulationChange)
    if change.time_scale is None and change.latency is None and change.metrics is None:
        raise RequestError("Set at least one of `time_scale`, `latency` and `metrics`.")
    models = (
        list(http.service.models)
        if change.model is None
        else [http.service.models.find_loaded(change.model)]
    )
    interfaces = [model.interfaces for model in models]
    simulations = [each.simulation for each in interfaces if each.simulation is not None]
    if not simulations:
        raise NotFound("No model of this server is simulated.", code="unsupported_endpoint")
    # A change that is invalid for one model must change none.
    for simulation in simulations:
        if change.time_scale is not None:
            simulation.check_time_scale()
        if change.latency is not None:
            simulation.check_latency(change.latency)
    for simulation in simulations:
        if change.time_scale is not None:
            simulation.set_time_scale(change.time_scale)
        if change.latency is not None:
            simulation.set_latency(change.latency)
        if change.metrics is not None:
            simulation.set_metrics(change.metrics)
    return await show_simulation(http)


class StateName(Struct, frozen=True):
    status: Literal["paused", "resumed"]


class WakeResult(Struct, frozen=True):
    status: Literal["awake", "sleeping"]
    tags: list[str] | None


class RequestSummary(RequestLogLine, kw_only=True):
    """A line of the request log with warnings.

    warnings: the parts of the request that had no effect.
    """

    warnings: list[str]


class RequestSummaries(Struct, frozen=True):
    object: Literal["list"]
    data: list[RequestSummary]


class SimulatedModels(Struct, frozen=True):
    object: Literal["list"]
    data: list[SimulatedModel]
