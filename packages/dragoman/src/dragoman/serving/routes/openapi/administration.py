"""OpenAPI operations of the routes that do not run a model: health, metrics,
administration, stored objects, models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ....dialects.anthropic.batches import (
    FileMetadata,
    FilePage,
    MessageBatch,
    MessageBatchBody,
    MessageBatchPage,
    MessageBatchResult,
)
from ....dialects.anthropic.wire import DeletedAnthropicFile, DeletedMessageBatch
from ....dialects.batches import BatchBody, BatchObject, FileObject
from ....dialects.chat.stored import ChatUpdate
from ....dialects.errors import OpenAIErrorBody
from ....dialects.models import ModelObject, ModelObjectList
from ....dialects.ollama.models import VersionObject
from ....dialects.openai_answers import ChatCompletion
from ....dialects.responses.answers import (
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    RESPONSE_EVENTS,
    ResponseObject,
)
from ....dialects.responses.stored import (
    ConversationBody,
    ConversationItemsBody,
    ConversationUpdate,
)
from ....dialects.usage import UsagePage
from ...port_faults import PortCommand
from ...request_log import RequestLogLine
from ..admin import (
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
    DiskUpdate,
    DiskUpdated,
    Loads,
    MemoryTags,
    SglangAbort,
    SglangModelInfo,
    SglangPause,
    TRANSFER_PATHS,
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
from .schemas import (
    ApiResponse,
    BINARY,
    CURSOR,
    DeletedObjectResponse,
    EVENTS,
    Form,
    MODEL,
    ObjectPage,
    Operation,
    Operations,
    PAGE,
    Query,
    STORED_LINES,
    TEXT,
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

ADMINISTRATION: Operations = {
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


# Stored objects, and the model lists.

_PAGE = (response(ObjectPage),)
_CHAT = "Chat Completions"
_ITEM = dict[str, object]
"""An item of a conversation or of an input. Its fields depend on its type; items of
hosted tools are kept as sent.
"""

STORED: Operations = {
    ("GET", "/v1/chat/completions"): Operation(
        _CHAT,
        "List stored completions",
        _PAGE,
        query=(*PAGE, Query("model", str, "Only completions of this model.")),
        description="`metadata[KEY]=VALUE` in the query selects by metadata.",
    ),
    ("GET", "/v1/chat/completions/{id}"): Operation(
        _CHAT, "Retrieve a stored completion", (response(ChatCompletion),)
    ),
    ("POST", "/v1/chat/completions/{id}"): Operation(
        _CHAT, "Replace a stored completion's metadata", (response(ChatCompletion),), (ChatUpdate,)
    ),
    ("DELETE", "/v1/chat/completions/{id}"): Operation(
        _CHAT, "Delete a stored completion", (response(DeletedObjectResponse),)
    ),
    ("GET", "/v1/chat/completions/{id}/messages"): Operation(
        _CHAT, "List the messages of a stored completion's request", _PAGE, query=PAGE
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "Responses",
        "Retrieve a stored response, or resume its stream",
        (response(ResponseObject), response(*RESPONSE_EVENTS, media=EVENTS)),
        query=(
            Query(
                "stream", Literal["true", "false"], "Stream the events of a background response."
            ),
            Query(
                "starting_after",
                Annotated[int, Meta(ge=0)],
                "Only events after this sequence number.",
            ),
            Query(
                "include", str, "Accepted; a stored response is returned as it is.", is_list=True
            ),
        ),
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        "Responses", "Delete a stored response", (response(DeletedResponse),)
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "Responses", "Cancel a background response", (response(ResponseObject),)
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "Responses", "List the input of a stored response", _PAGE, query=PAGE
    ),
    ("POST", "/v1/conversations"): Operation(
        "Conversations",
        "Create a conversation",
        (response(ConversationObject),),
        (ConversationBody,),
        is_body_optional=True,
    ),
    ("GET", "/v1/conversations/{id}"): Operation(
        "Conversations", "Retrieve a conversation", (response(ConversationObject),)
    ),
    ("POST", "/v1/conversations/{id}"): Operation(
        "Conversations",
        "Replace a conversation's metadata",
        (response(ConversationObject),),
        (ConversationUpdate,),
    ),
    ("DELETE", "/v1/conversations/{id}"): Operation(
        "Conversations", "Delete a conversation", (response(DeletedConversation),)
    ),
    ("GET", "/v1/conversations/{id}/items"): Operation(
        "Conversations", "List a conversation's items", _PAGE, query=PAGE
    ),
    ("POST", "/v1/conversations/{id}/items"): Operation(
        "Conversations", "Add items to a conversation", _PAGE, (ConversationItemsBody,)
    ),
    ("GET", "/v1/conversations/{id}/items/{item}"): Operation(
        "Conversations", "Retrieve an item", (response(_ITEM),)
    ),
    ("DELETE", "/v1/conversations/{id}/items/{item}"): Operation(
        "Conversations", "Delete an item", (response(ConversationObject),)
    ),
    ("GET", "/v1/messages/batches"): Operation(
        "Message batches", "List message batches", (response(MessageBatchPage),), query=CURSOR
    ),
    ("POST", "/v1/messages/batches"): Operation(
        "Message batches", "Create a message batch", (response(MessageBatch),), (MessageBatchBody,)
    ),
    ("GET", "/v1/messages/batches/{batch}"): Operation(
        "Message batches", "Retrieve a message batch", (response(MessageBatch),)
    ),
    ("DELETE", "/v1/messages/batches/{batch}"): Operation(
        "Message batches", "Delete a message batch", (response(DeletedMessageBatch),)
    ),
    ("POST", "/v1/messages/batches/{batch}/cancel"): Operation(
        "Message batches", "Cancel a message batch", (response(MessageBatch),)
    ),
    ("GET", "/v1/messages/batches/{batch}/results"): Operation(
        "Message batches",
        "Read the results, one a line",
        (response(MessageBatchResult, media=STORED_LINES),),
    ),
    ("GET", "/v1/files"): Operation(
        "Files",
        "List files",
        (response(ObjectPage, FilePage),),
        query=(
            Query("limit", Annotated[int, Meta(ge=1)], "Maximum number of objects per page."),
            *PAGE[1:],
            Query("purpose", str, "Only files of this purpose."),
            Query("page", str, "Anthropic's cursor: `next_page` of the previous page."),
        ),
        description="With the header `anthropic-version`, in Anthropic's format.",
    ),
    ("POST", "/v1/files"): Operation(
        "Files",
        "Upload a file",
        (response(FileObject, FileMetadata),),
        (
            Form(
                {
                    "file": (bytes, "The content."),
                    "purpose": (
                        str,
                        "`batch` or another of OpenAI's purposes; not in Anthropic's API.",
                    ),
                    "expires_after[anchor]": (
                        Literal["created_at"],
                        "The start of the file's lifetime.",
                    ),
                    "expires_after[seconds]": (int, "Lifetime of the file, in seconds."),
                    "expires_in_seconds": (
                        int,
                        "Lifetime of the file, in seconds, in Anthropic's API.",
                    ),
                }
            ),
        ),
        description="With the header `anthropic-version`, in Anthropic's format.",
    ),
    ("GET", "/v1/files/{file}"): Operation(
        "Files", "Retrieve a file's metadata", (response(FileObject, FileMetadata),)
    ),
    ("DELETE", "/v1/files/{file}"): Operation(
        "Files", "Delete a file", (response(DeletedObjectResponse, DeletedAnthropicFile),)
    ),
    ("GET", "/v1/files/{file}/content"): Operation(
        "Files", "Download a file", (ApiResponse(media=BINARY),)
    ),
    ("GET", "/v1/batches"): Operation("Batches", "List batches", _PAGE, query=PAGE),
    ("POST", "/v1/batches"): Operation(
        "Batches", "Create a batch", (response(BatchObject),), (BatchBody,)
    ),
    ("GET", "/v1/batches/{batch}"): Operation(
        "Batches", "Retrieve a batch", (response(BatchObject),)
    ),
    ("POST", "/v1/batches/{batch}/cancel"): Operation(
        "Batches", "Cancel a batch", (response(BatchObject),)
    ),
    ("GET", "/v1/models"): Operation("Models", "List the models", (response(ModelObjectList),)),
    ("GET", "/v1/models/{model}"): Operation(
        "Models",
        "Retrieve a model",
        (response(ModelObject),),
        description="The name may contain slashes.",
    ),
}
