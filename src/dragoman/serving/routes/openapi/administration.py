"""The description of the routes about the server itself: health, metrics, administration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ....dialects.errors import OpenAIErrorBody
from ....dialects.ollama.answers import VersionObject
from ....dialects.usage import UsagePage
from ...port_faults import PortCommand
from ...request_log import RequestLogLine
from ..admin import AbortBody, AbortResult, AdapterLoad, AdapterUnload, PauseState, SleepResult, SleepState
from ..listener import PortStates
from ..live_state import SimulatedModel, SimulationChange
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
from .operations import BINARY, EVENTS, MODEL, TEXT, ApiAnswer, Catalogue, Operation, Query, answer


class NotReady(Struct, frozen=True):
    """Why the server is not ready. model: the one that is not."""

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
    """A line of the request log. warnings: which parts of the request had no effect."""

    warnings: list[str]


class RequestSummaries(Struct, frozen=True):
    object: Literal["list"]
    data: list[RequestSummary]


class SimulatedModels(Struct, frozen=True):
    object: Literal["list"]
    data: list[SimulatedModel]


_ADMIN = "Administration"
_WEIGHTS = "Weights"
_EMPTY = ApiAnswer(media=None, description="Empty.")
_HEALTH = Operation(
    "Server",
    "Say whether the server is ready",
    (
        ApiAnswer(media=None, description="Every engine is ready. The body is empty."),
        ApiAnswer((NotReady,), status=503, description="An engine is not ready, or the server shuts down."),
    ),
)
_MODE = Query("mode", Literal["abort", "wait", "keep"], "What becomes of running requests; by default they end.")
_FLUSH = Operation(
    "SGLang and TGI",
    "Clear the prefix cache",
    (ApiAnswer(media=TEXT), ApiAnswer(media=TEXT, status=400, description="A part of the cache is in use.")),
)
_MODEL_INFO = Operation("SGLang and TGI", "Show the model, as in SGLang", (answer(SglangModelInfo),), query=(MODEL,))
_FAULTS = (answer(list[dict[str, Any]]),)
_SET_FAULTS = Operation(
    "Simulation", "Replace the injected faults", _FAULTS, query=(MODEL,), description="The body is a list of faults."
)
_PORTS = (answer(PortStates),)
_SET_PORTS = Operation("Simulation", "Close, reset or open ports", _PORTS, (PortCommand,))
_SIMULATION = (answer(SimulatedModels),)
_USAGE = (
    *(
        Query(name, Annotated[int, Meta(ge=0)], text)
        for name, text in (("start_time", "Unix seconds; required."), ("end_time", "Unix seconds."))
    ),
    Query("limit", Annotated[int, Meta(ge=1, le=168)], "The most buckets of a page."),
    Query("bucket_width", Literal["1h", "1d"], "The length of a bucket."),
    Query("group_by", Literal["api_key_id", "model", "batch"], "A sum for each of its values.", is_list=True),
    Query("api_key_ids", str, "Only these keys.", is_list=True),
    Query("models", str, "Only these models.", is_list=True),
    Query("batch", Literal["true", "false"], "Only batch requests, or none of them."),
    Query("page", str, "`next_page` of the page before."),
)
_LOADING = (answer(Success), answer(ModelEvent, OpenAIErrorBody, media=EVENTS))

ADMINISTRATION: Catalogue = {
    ("GET", "/openapi.json"): Operation("Server", "Describe the API", (answer(dict[str, Any]),), is_cached=True),
    **{
        ("GET", path): Operation("Server", summary, (ApiAnswer(media=media),), is_cached=True)
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
        tuple(ApiAnswer(media=media) for media in ("text/html", "text/javascript", "text/css", "image/svg+xml")),
        is_cached=True,
    ),
    **{
        ("GET", f"/v1/organization/usage/{kind}"): Operation(
            _ADMIN, f"Show the usage of {kind} by key, model and time", (answer(UsagePage),), query=_USAGE
        )
        for kind in ("completions", "embeddings")
    },
    ("GET", "/dragoman/requests"): Operation(
        _ADMIN, "List the last requests without their content (--ui)", (answer(RequestSummaries),)
    ),
    ("GET", "/dragoman/simulator"): Operation("Simulation", "Show the simulated models", _SIMULATION),
    **{
        (method, "/dragoman/simulator"): Operation(
            "Simulation", "Change the speed of simulated time", _SIMULATION, (SimulationChange,)
        )
        for method in ("PUT", "POST")
    },
    **{("GET", path): _HEALTH for path in ("/health", "/healthz", "/readyz", "/ping", "/health_generate")},
    ("POST", "/ping"): _HEALTH,
    ("GET", "/livez"): Operation("Server", "Say whether the process responds", (_EMPTY,)),
    ("GET", "/version"): Operation("Server", "Show the version", (answer(VersionObject),)),
    ("GET", "/metrics"): Operation("Server", "Read the metrics, in Prometheus' format", (ApiAnswer(media=TEXT),)),
    ("GET", "/load"): Operation("Server", "Count waiting and running requests", (answer(ServerLoad),)),
    ("GET", "/get_world_size"): Operation("Server", "Show the number of processes", (answer(WorldSize),)),
    ("GET", "/server_info"): Operation(
        _ADMIN,
        "Show the server's settings",
        (answer(ServerInfo),),
        query=(
            MODEL,
            Query("config_format", Literal["text", "json"], "Whether vLLM's part is a text or an object."),
        ),
    ),
    ("POST", "/reset_prefix_cache"): Operation(_ADMIN, "Clear the prefix cache", (answer(CacheReset),)),
    ("POST", "/sleep"): Operation(
        _ADMIN,
        "Free the memory of the engines",
        (answer(SleepResult),),
        query=(Query("level", Literal["0", "1", "2"], "0 only pauses; 2 also drops weights."), _MODE, MODEL),
    ),
    ("POST", "/wake_up"): Operation(
        _ADMIN,
        "Wake the engines",
        (answer(WakeResult),),
        query=(
            Query("tags", Literal["weights", "kv_cache", "scheduling"], "What to wake; by default all.", is_list=True),
            MODEL,
        ),
    ),
    ("GET", "/is_sleeping"): Operation(_ADMIN, "Say whether an engine sleeps", (answer(SleepState),), query=(MODEL,)),
    ("POST", "/pause"): Operation(
        _ADMIN,
        "Pause generation",
        (answer(StateName),),
        query=(_MODE, Query("clear_cache", Literal["true", "false"], "Whether caches are cleared."), MODEL),
    ),
    ("POST", "/resume"): Operation(_ADMIN, "Resume generation", (answer(StateName),), query=(MODEL,)),
    ("GET", "/is_paused"): Operation(_ADMIN, "Say whether an engine is paused", (answer(PauseState),), query=(MODEL,)),
    ("POST", "/abort_requests"): Operation(
        _ADMIN, "Abort all requests", (answer(AbortResult),), (AbortBody,), is_body_optional=True, query=(MODEL,)
    ),
    ("POST", "/collective_rpc"): Operation(_ADMIN, "Refused: methods cannot be called by name", ()),
    ("POST", "/v1/load_lora_adapter"): Operation(_ADMIN, "Load an adapter", (ApiAnswer(media=TEXT),), (AdapterLoad,)),
    ("POST", "/v1/unload_lora_adapter"): Operation(
        _ADMIN, "Unload an adapter", (ApiAnswer(media=TEXT),), (AdapterUnload,)
    ),
    ("GET", "/models"): Operation("Models", "List the models with their states", (answer(ModelStateList),)),
    ("POST", "/models"): Operation("Models", "Download a model in the background", (answer(Success),), (ModelRequest,)),
    ("DELETE", "/models"): Operation("Models", "Refused: models are deleted by the operator", ()),
    ("GET", "/models/sse"): Operation(
        "Models", "Stream the states of the models, and each change", (answer(ModelEvent, media=EVENTS),)
    ),
    ("POST", "/models/load"): Operation("Models", "Load a model", _LOADING, (ModelRequest,)),
    ("POST", "/models/unload"): Operation("Models", "Unload a model", _LOADING, (ModelRequest,)),
    ("POST", "/models/pull"): Operation("Models", "Download a model", _LOADING, (ModelRequest,)),
    ("POST", "/dragoman/reply"): Operation(
        "Simulation",
        "Set the reply to the next request",
        (ApiAnswer(media=None, status=204, description="The reply is in the queue."),),
        query=(MODEL,),
        description="The body is a reply, as in docs/scripted.md.",
    ),
    ("GET", "/dragoman/faults"): Operation("Simulation", "List the injected faults", _FAULTS, query=(MODEL,)),
    ("PUT", "/dragoman/faults"): _SET_FAULTS,
    ("POST", "/dragoman/faults"): _SET_FAULTS,
    ("GET", "/dragoman/listener"): Operation("Simulation", "List the ports with their states", _PORTS),
    ("PUT", "/dragoman/listener"): _SET_PORTS,
    ("POST", "/dragoman/listener"): _SET_PORTS,
    ("POST", "/init_weight_transfer_engine"): Operation(
        _WEIGHTS,
        "Prepare weight updates",
        (answer(TransferMessage),),
        (TransferInit,),
        is_body_optional=True,
        query=(MODEL,),
    ),
    ("POST", "/shutdown_weight_transfer_engine"): Operation(
        _WEIGHTS, "Discard an unfinished update", (answer(TransferMessage),), query=(MODEL,)
    ),
    ("POST", "/start_weight_update"): Operation(
        _WEIGHTS, "Start an update in several parts", (answer(TransferMessage),), query=(MODEL,)
    ),
    ("POST", "/update_weights"): Operation(
        _WEIGHTS,
        "Update the weights, or add a part to a started update",
        (answer(WeightUpdated, TransferMessage),),
        (WeightUpdate,),
        accepts_binary=True,
        query=(MODEL, Query("weight_version", str, "The version of weights that are the body.")),
        description=f"As `{BINARY}` the body is a safetensors file.",
    ),
    ("POST", "/finish_weight_update"): Operation(
        _WEIGHTS,
        "Apply a started update",
        (answer(WeightUpdated),),
        (WeightFinish,),
        is_body_optional=True,
        query=(MODEL,),
    ),
    ("POST", "/update_weight_version"): Operation(
        _WEIGHTS, "Name the version of the weights", (answer(WeightRenamed),), (WeightRename,), query=(MODEL,)
    ),
    ("GET", "/weight_info"): Operation(
        _WEIGHTS, "Show the version of the weights", (answer(WeightInfo),), query=(MODEL,)
    ),
    ("GET", "/get_model_info"): _MODEL_INFO,
    ("GET", "/model_info"): _MODEL_INFO,
    ("GET", "/v1/loads"): Operation(
        "SGLang and TGI",
        "Count running and waiting requests, as in SGLang",
        (answer(Loads),),
        query=(Query("format", Literal["json"], "Prometheus' format is at /metrics."),),
    ),
    ("GET", "/get_weight_version"): Operation(
        _WEIGHTS, "Show the version of the weights, as in SGLang", (answer(WeightVersion),), query=(MODEL,)
    ),
    ("POST", "/update_weights_from_disk"): Operation(
        _WEIGHTS,
        "Update the weights from a directory below --weights-dir",
        (answer(DiskUpdated),),
        (DiskUpdate,),
        query=(MODEL,),
    ),
    **{
        ("POST", path): Operation(_WEIGHTS, "Refused: pickled tensors and process groups are not supported", ())
        for path in TRANSFER_PATHS
    },
    ("POST", "/pause_generation"): Operation(
        _ADMIN,
        "Pause generation, as in SGLang",
        (answer(SglangState),),
        (SglangPause,),
        is_body_optional=True,
        query=(MODEL,),
    ),
    ("POST", "/continue_generation"): Operation(
        _ADMIN, "Resume generation, as in SGLang", (answer(SglangState),), query=(MODEL,)
    ),
    ("POST", "/abort_request"): Operation(
        _ADMIN, "Abort all requests, as in SGLang", (_EMPTY,), (SglangAbort,), query=(MODEL,)
    ),
    ("GET", "/flush_cache"): _FLUSH,
    ("POST", "/flush_cache"): _FLUSH,
    ("POST", "/release_memory_occupation"): Operation(
        _ADMIN, "Free the engines' memory", (answer(None),), (MemoryTags,), is_body_optional=True, query=(MODEL,)
    ),
    ("POST", "/resume_memory_occupation"): Operation(
        _ADMIN, "Restore the engines' memory", (answer(None),), (MemoryTags,), is_body_optional=True, query=(MODEL,)
    ),
}
