"""OpenAPI operations of administrative routes: health, metrics, control of engines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ....dialects.ollama.response_schemas import VersionObject
from ....dialects.openai_errors import OpenAIErrorBody
from ....dialects.usage_report import UsagePage
from ...port_faults import PortCommand
from ...request_log import RequestLogLine
from ..engine_control import (
    AbortBody,
    AbortResult,
    AdapterLoad,
    AdapterUnload,
    PauseState,
    PortStates,
    SimulatedModel,
    SimulationChange,
    SleepResult,
    SleepState,
)
from ..model_admin import ModelEvent, ModelRequest, ModelStateList
from ..sglang import (
    TRANSFER_PATHS,
    DiskUpdate,
    DiskUpdated,
    Loads,
    MemoryTags,
    SglangAbort,
    SglangModelInfo,
    SglangPause,
    WeightVersion,
)
from ..vllm import CacheReset, ServerInfo, ServerLoad
from ..weights import (
    TransferInit,
    TransferMessage,
    WeightFinish,
    WeightInfo,
    WeightRename,
    WeightRenamed,
    WeightUpdate,
    WeightUpdated,
)
from .operation import (
    BINARY,
    EVENTS,
    MODEL,
    TEXT,
    ApiResponse,
    Operation,
    Operations,
    Query,
    response,
)


class NotReady(Struct, frozen=True):
    """The reason why the server is not ready.

    model: the name of the model that is not ready.
    """

    reason: str
    model: str | UnsetType = UNSET


class StateName(Struct, frozen=True):
    status: Literal["paused", "resumed"]


class WakeResult(Struct, frozen=True):
    status: Literal["awake", "sleeping"]
    tags: list[str] | None


class SglangState(Struct, frozen=True):
    message: str
    status: Literal["ok"]


class WorldSize(Struct, frozen=True):
    """The number of processes that hold a part of the model."""

    world_size: int


class Success(Struct, frozen=True):
    success: Literal[True]


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


_ADMIN = "Administration"
_WEIGHTS = "Weights"
_EMPTY = ApiResponse(media=None, description="Empty.")
_HEALTH = Operation(
    "Server",
    "Check whether the server is ready",
    (
        ApiResponse(media=None, description="Every engine is ready. The body is empty."),
        ApiResponse(
            (NotReady,),
            status=503,
            description="An engine is not ready, or the server is shutting down.",
        ),
    ),
)
_MODE = Query(
    "mode",
    Literal["abort", "wait", "keep"],
    "The handling of running requests; the default is `abort`.",
)
_FLUSH = Operation(
    "SGLang and TGI",
    "Clear the prefix cache",
    (
        ApiResponse(media=TEXT),
        ApiResponse(media=TEXT, status=400, description="A part of the cache is in use."),
    ),
)
_MODEL_INFO = Operation(
    "SGLang and TGI", "Show the model, as in SGLang", (response(SglangModelInfo),), query=(MODEL,)
)
_FAULTS = (response(list[dict[str, Any]]),)
_SET_FAULTS = Operation(
    "Simulation",
    "Replace the injected faults",
    _FAULTS,
    query=(MODEL,),
    description="The body is a list of faults.",
)
_PORTS = (response(PortStates),)
_SET_PORTS = Operation("Simulation", "Close, reset or open ports", _PORTS, (PortCommand,))
_SIMULATION = (response(SimulatedModels),)
_USAGE = (
    *(
        Query(name, Annotated[int, Meta(ge=0)], text)
        for name, text in (("start_time", "Unix seconds; required."), ("end_time", "Unix seconds."))
    ),
    Query("limit", Annotated[int, Meta(ge=1, le=168)], "Maximum number of buckets per page."),
    Query("bucket_width", Literal["1h", "1d"], "The length of a bucket."),
    Query(
        "group_by",
        Literal["api_key_id", "model", "batch"],
        "Group by this field; repeatable.",
        is_list=True,
    ),
    Query("api_key_ids", str, "Only these keys.", is_list=True),
    Query("models", str, "Only these models.", is_list=True),
    Query("batch", Literal["true", "false"], "Only batch requests, or none of them."),
    Query("page", str, "`next_page` of the previous page."),
)
_LOADING = (response(Success), response(ModelEvent, OpenAIErrorBody, media=EVENTS))

ADMINISTRATION_OPERATIONS: Operations = {
    ("GET", "/openapi.json"): Operation(
        "Server", "Describe the API", (response(dict[str, Any]),), is_cached=True
    ),
    **{
        ("GET", path): Operation("Server", summary, (ApiResponse(media=media),), is_cached=True)
        for path, summary, media in (
            ("/docs", "Show the API in a browser", "text/html"),
            ("/docs/viewer.js", "Read the page's program", "text/javascript"),
            ("/docs/viewer.css", "Read the page's style", "text/css"),
            ("/docs/icon.svg", "Read the page's icon", "image/svg+xml"),
            ("/ui", "Show the page of this server", "text/html"),
        )
    },
    ("GET", "/ui/{file}"): Operation(
        "Server",
        "Read a file of the page",
        tuple(
            ApiResponse(media=media)
            for media in ("text/html", "text/javascript", "text/css", "image/svg+xml")
        ),
        is_cached=True,
    ),
    **{
        ("GET", f"/v1/organization/usage/{kind}"): Operation(
            _ADMIN,
            f"Show the usage of {kind} by key, model and time",
            (response(UsagePage),),
            query=_USAGE,
        )
        for kind in ("completions", "embeddings")
    },
    ("GET", "/dragoman/requests"): Operation(
        _ADMIN, "List the last requests without their content (--ui)", (response(RequestSummaries),)
    ),
    ("GET", "/dragoman/simulator"): Operation(
        "Simulation", "Show the simulated models", _SIMULATION
    ),
    **{
        (method, "/dragoman/simulator"): Operation(
            "Simulation", "Change the speed of simulated time", _SIMULATION, (SimulationChange,)
        )
        for method in ("PUT", "POST")
    },
    **{
        ("GET", path): _HEALTH
        for path in ("/health", "/healthz", "/readyz", "/ping", "/health_generate")
    },
    ("POST", "/ping"): _HEALTH,
    ("GET", "/livez"): Operation("Server", "Check whether the process responds", (_EMPTY,)),
    ("GET", "/version"): Operation("Server", "Show the version", (response(VersionObject),)),
    ("GET", "/metrics"): Operation(
        "Server", "Read the metrics, in Prometheus' format", (ApiResponse(media=TEXT),)
    ),
    ("GET", "/load"): Operation(
        "Server", "Count waiting and running requests", (response(ServerLoad),)
    ),
    ("GET", "/get_world_size"): Operation(
        "Server", "Show the number of processes", (response(WorldSize),)
    ),
    ("GET", "/server_info"): Operation(
        _ADMIN,
        "Show the server's settings",
        (response(ServerInfo),),
        query=(
            MODEL,
            Query(
                "config_format",
                Literal["text", "json"],
                "Whether vLLM's part is a string or an object.",
            ),
        ),
    ),
    ("POST", "/reset_prefix_cache"): Operation(
        _ADMIN, "Clear the prefix cache", (response(CacheReset),)
    ),
    ("POST", "/sleep"): Operation(
        _ADMIN,
        "Free the memory of the engines",
        (response(SleepResult),),
        query=(
            Query("level", Literal["0", "1", "2"], "0 only pauses; 2 also drops weights."),
            _MODE,
            MODEL,
        ),
    ),
    ("POST", "/wake_up"): Operation(
        _ADMIN,
        "Wake the engines",
        (response(WakeResult),),
        query=(
            Query(
                "tags",
                Literal["weights", "kv_cache", "scheduling"],
                "The parts to wake; default: all.",
                is_list=True,
            ),
            MODEL,
        ),
    ),
    ("GET", "/is_sleeping"): Operation(
        _ADMIN, "Show whether an engine sleeps", (response(SleepState),), query=(MODEL,)
    ),
    ("POST", "/pause"): Operation(
        _ADMIN,
        "Pause generation",
        (response(StateName),),
        query=(
            _MODE,
            Query("clear_cache", Literal["true", "false"], "Whether caches are cleared."),
            MODEL,
        ),
    ),
    ("POST", "/resume"): Operation(
        _ADMIN, "Resume generation", (response(StateName),), query=(MODEL,)
    ),
    ("GET", "/is_paused"): Operation(
        _ADMIN, "Show whether an engine is paused", (response(PauseState),), query=(MODEL,)
    ),
    ("POST", "/abort_requests"): Operation(
        _ADMIN,
        "Abort all requests",
        (response(AbortResult),),
        (AbortBody,),
        is_body_optional=True,
        query=(MODEL,),
    ),
    ("POST", "/collective_rpc"): Operation(_ADMIN, "Not supported: calls of methods by name", ()),
    ("POST", "/v1/load_lora_adapter"): Operation(
        _ADMIN, "Load an adapter", (ApiResponse(media=TEXT),), (AdapterLoad,)
    ),
    ("POST", "/v1/unload_lora_adapter"): Operation(
        _ADMIN, "Unload an adapter", (ApiResponse(media=TEXT),), (AdapterUnload,)
    ),
    ("GET", "/models"): Operation(
        "Models", "List the models with their states", (response(ModelStateList),)
    ),
    ("POST", "/models"): Operation(
        "Models", "Download a model in the background", (response(Success),), (ModelRequest,)
    ),
    ("DELETE", "/models"): Operation(
        "Models", "Not supported: models are deleted by the operator", ()
    ),
    ("GET", "/models/sse"): Operation(
        "Models",
        "Stream the states of the models, and each change",
        (response(ModelEvent, media=EVENTS),),
    ),
    ("POST", "/models/load"): Operation("Models", "Load a model", _LOADING, (ModelRequest,)),
    ("POST", "/models/unload"): Operation("Models", "Unload a model", _LOADING, (ModelRequest,)),
    ("POST", "/models/pull"): Operation("Models", "Download a model", _LOADING, (ModelRequest,)),
    ("POST", "/dragoman/reply"): Operation(
        "Simulation",
        "Enqueue a scripted reply",
        (ApiResponse(media=None, status=204, description="The reply is in the queue."),),
        query=(MODEL,),
        description="The body is a reply, as in docs/scripted.md.",
    ),
    ("GET", "/dragoman/faults"): Operation(
        "Simulation", "List the injected faults", _FAULTS, query=(MODEL,)
    ),
    ("PUT", "/dragoman/faults"): _SET_FAULTS,
    ("POST", "/dragoman/faults"): _SET_FAULTS,
    ("GET", "/dragoman/listener"): Operation(
        "Simulation", "List the ports with their states", _PORTS
    ),
    ("PUT", "/dragoman/listener"): _SET_PORTS,
    ("POST", "/dragoman/listener"): _SET_PORTS,
    ("POST", "/init_weight_transfer_engine"): Operation(
        _WEIGHTS,
        "Prepare weight updates",
        (response(TransferMessage),),
        (TransferInit,),
        is_body_optional=True,
        query=(MODEL,),
    ),
    ("POST", "/shutdown_weight_transfer_engine"): Operation(
        _WEIGHTS, "Discard an unfinished update", (response(TransferMessage),), query=(MODEL,)
    ),
    ("POST", "/start_weight_update"): Operation(
        _WEIGHTS, "Start an update in several parts", (response(TransferMessage),), query=(MODEL,)
    ),
    ("POST", "/update_weights"): Operation(
        _WEIGHTS,
        "Update the weights, or add a part to a started update",
        (response(WeightUpdated, TransferMessage),),
        (WeightUpdate,),
        accepts_binary=True,
        query=(MODEL, Query("weight_version", str, "The version of the weights in the body.")),
        description=f"As `{BINARY}` the body is a safetensors file.",
    ),
    ("POST", "/finish_weight_update"): Operation(
        _WEIGHTS,
        "Apply a started update",
        (response(WeightUpdated),),
        (WeightFinish,),
        is_body_optional=True,
        query=(MODEL,),
    ),
    ("POST", "/update_weight_version"): Operation(
        _WEIGHTS,
        "Name the version of the weights",
        (response(WeightRenamed),),
        (WeightRename,),
        query=(MODEL,),
    ),
    ("GET", "/weight_info"): Operation(
        _WEIGHTS, "Show the version of the weights", (response(WeightInfo),), query=(MODEL,)
    ),
    ("GET", "/get_model_info"): _MODEL_INFO,
    ("GET", "/model_info"): _MODEL_INFO,
    ("GET", "/v1/loads"): Operation(
        "SGLang and TGI",
        "Count running and waiting requests, as in SGLang",
        (response(Loads),),
        query=(Query("format", Literal["json"], "Prometheus' format is at /metrics."),),
    ),
    ("GET", "/get_weight_version"): Operation(
        _WEIGHTS,
        "Show the version of the weights, as in SGLang",
        (response(WeightVersion),),
        query=(MODEL,),
    ),
    ("POST", "/update_weights_from_disk"): Operation(
        _WEIGHTS,
        "Update the weights from a directory below --weights-dir",
        (response(DiskUpdated),),
        (DiskUpdate,),
        query=(MODEL,),
    ),
    **{
        ("POST", path): Operation(_WEIGHTS, "Not supported: pickled tensors and process groups", ())
        for path in TRANSFER_PATHS
    },
    ("POST", "/pause_generation"): Operation(
        _ADMIN,
        "Pause generation, as in SGLang",
        (response(SglangState),),
        (SglangPause,),
        is_body_optional=True,
        query=(MODEL,),
    ),
    ("POST", "/continue_generation"): Operation(
        _ADMIN, "Resume generation, as in SGLang", (response(SglangState),), query=(MODEL,)
    ),
    ("POST", "/abort_request"): Operation(
        _ADMIN, "Abort all requests, as in SGLang", (_EMPTY,), (SglangAbort,), query=(MODEL,)
    ),
    ("GET", "/flush_cache"): _FLUSH,
    ("POST", "/flush_cache"): _FLUSH,
    ("POST", "/release_memory_occupation"): Operation(
        _ADMIN,
        "Free the engines' memory",
        (response(None),),
        (MemoryTags,),
        is_body_optional=True,
        query=(MODEL,),
    ),
    ("POST", "/resume_memory_occupation"): Operation(
        _ADMIN,
        "Restore the engines' memory",
        (response(None),),
        (MemoryTags,),
        is_body_optional=True,
        query=(MODEL,),
    ),
}
