"""Weight update routes with vLLM's names, for safetensors only.

Weights come in a request's body, or from a directory that the operator allows. Pickled
data is never read, and a trainer's own channels (NCCL, CUDA IPC) are not supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Raw, Struct

from ...core.errors import (
    BodyTooLarge,
    Conflict,
    NotFound,
    RequestError,
    Unsupported,
)
from ...core.weight_updates import Trainable, Weights, WeightsInMemory, WeightsOnDisk
from ...dialects.openai_errors import OPENAI_ERRORS
from ..api_description import BINARY, MODEL, Query, response
from ..auth import Access
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..request_body import read_body
from ..responder import Responder
from ..route import Route, RouteGroup
from .engine_control import decode_body, resolve_path_below

BINARY_TYPES = (
    "application/octet-stream",
    "application/vnd.safetensors",
    "application/x-safetensors",
)
SUPPORTED_TRANSFERS_HINT = (
    "this server takes safetensors: the bytes of a file as the body of POST /update_weights with "
    "`Content-Type: "
    'application/octet-stream`, or {"update_info": {"path": "..."}} beneath --weights-dir'
)


def build_routes() -> Sequence[Route]:
    uploads = WeightUploads()
    routes = RouteGroup("Weights", OPENAI_ERRORS, Access.ADMIN)
    routes.add(
        "POST",
        "/init_weight_transfer_engine",
        initialize,
        "Prepare weight updates",
        response(TransferMessage),
        bodies=(TransferInit,),
        is_body_optional=True,
        query=(MODEL,),
    )
    routes.add(
        "POST",
        "/shutdown_weight_transfer_engine",
        partial(shut_down, uploads),
        "Discard an unfinished update",
        response(TransferMessage),
        query=(MODEL,),
    )
    routes.add(
        "POST",
        "/start_weight_update",
        partial(start, uploads),
        "Start an update in several parts",
        response(TransferMessage),
        query=(MODEL,),
    )
    routes.add(
        "POST",
        "/update_weights",
        partial(update, uploads),
        "Update the weights, or add a part to a started update",
        response(WeightUpdated, TransferMessage),
        bodies=(WeightUpdate,),
        accepts_binary=True,
        query=(
            MODEL,
            Query("weight_version", str, "The version of the weights in the body."),
        ),
        description=f"As `{BINARY}` the body is a safetensors file.",
    )
    routes.add(
        "POST",
        "/finish_weight_update",
        partial(finish, uploads),
        "Apply a started update",
        response(WeightUpdated),
        bodies=(WeightFinish,),
        is_body_optional=True,
        query=(MODEL,),
    )
    routes.add(
        "POST",
        "/update_weight_version",
        set_version,
        "Name the version of the weights",
        response(WeightRenamed),
        bodies=(WeightRename,),
        query=(MODEL,),
    )
    routes.add(
        "GET",
        "/weight_info",
        show_info,
        "Show the version of the weights",
        response(WeightInfo),
        query=(MODEL,),
    )
    return routes.build()


class WeightUploads:
    """The weight updates in progress, by model. Parts arrive in several requests, and
    are applied when complete.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[Weights]] = {}

    def start(self, model: str) -> None:
        """Start an update, discarding an unfinished one."""
        # A restarted trainer sends everything again; its old parts must not be mixed
        # with the new ones.
        self._open[model] = []

    def is_open(self, model: str) -> bool:
        return model in self._open

    def discard(self, model: str) -> None:
        self._open.pop(model, None)

    def add(self, model: str, part: Weights, max_bytes: int) -> None:
        """Add a part.

        max_bytes: limit of all parts together.

        Raises:
            BodyTooLarge: the limit is exceeded.
        """
        size = sum(
            len(file)
            for upload in (*self._open[model], part)
            if isinstance(upload, WeightsInMemory)
            for file in upload.files
        )
        if size > max_bytes:
            raise BodyTooLarge(f"The parts together exceed the limit of {max_bytes} bytes.")
        self._open[model].append(part)

    def finish(self, model: str) -> Weights:
        """Return the complete weights and end the update.

        Raises:
            Conflict: no update is in progress.
            RequestError: the parts do not form complete weights.
        """
        if model not in self._open:
            raise Conflict("No weight update is in progress.")
        # The update ends even on an error: the trainer then starts again from the
        # beginning.
        match self._open.pop(model):
            case []:
                raise RequestError(
                    "No weights have been sent since the update started.", param="weights"
                )
            case [WeightsOnDisk() as stored]:
                return stored
            case parts:
                files = [
                    file
                    for part in parts
                    if isinstance(part, WeightsInMemory)
                    for file in part.files
                ]
                if len(files) < len(parts):
                    raise RequestError(
                        "Send the weights in parts or as a path, not both.", param="weights"
                    )
                return WeightsInMemory(tuple(files))


def find_trainable(http: HttpRequest) -> tuple[str, Trainable]:
    """Return the name and the engine of the model whose weights can be replaced: the
    one in the query, or the only one.

    Raises:
        NotFound: no engine supports weight updates.
        RequestError: several models support them, and the query names none.
    """
    models = http.service.models
    name = http.query.get("model")
    candidates = list(models) if name is None else [models.find_loaded(name)]
    trainables = [
        (model.name, trainable)
        for model in candidates
        if (trainable := model.interfaces.trainable) is not None
    ]
    if not trainables:
        raise NotFound(
            "This server's engine does not support weight updates.", code="unsupported_endpoint"
        )
    if len(trainables) > 1:
        raise RequestError("Several models are served; name one: ?model=NAME.", param="model")
    return trainables[0]


def find_weights_on_disk(http: HttpRequest, path: str, param: str) -> WeightsOnDisk:
    """Return the weights at a path below `--weights-dir`. Raises the errors of
    `resolve_path_below`.
    """
    return WeightsOnDisk(
        str(resolve_path_below(http.service.options.weights_dir, path, "--weights-dir", param))
    )


class TransferInit(Struct, frozen=True):
    init_info: dict[str, Raw] = {}


async def initialize(http: HttpRequest) -> JsonResponse | Responder:
    find_trainable(http)
    request = await decode_body(http, TransferInit)
    unknown = next((name for name in request.init_info if name != "backend"), None)
    backend = request.init_info.get("backend")
    if unknown is not None or (backend is not None and bytes(backend) != b'"safetensors"'):
        param = f"init_info.{unknown or 'backend'}"
        raise Unsupported(
            f"This type of weight transfer is not supported: {SUPPORTED_TRANSFERS_HINT}.",
            param=param,
        )
    return _render_message("Weight transfer initialized")


async def shut_down(uploads: WeightUploads, http: HttpRequest) -> JsonResponse | Responder:
    """Discard an unfinished update."""
    name, _ = find_trainable(http)
    uploads.discard(name)
    return _render_message("Weight transfer shut down")


async def start(uploads: WeightUploads, http: HttpRequest) -> JsonResponse | Responder:
    name, _ = find_trainable(http)
    uploads.start(name)
    return _render_message("Weight update started")


class _Stored(Struct, frozen=True, forbid_unknown_fields=True):
    path: str


class WeightUpdate(Struct, frozen=True):
    update_info: Raw = Raw(b"{}")
    weight_version: str | None = None


async def update(uploads: WeightUploads, http: HttpRequest) -> JsonResponse | Responder:
    """Add a part to the started update, or apply a complete one."""
    name, trainable = find_trainable(http)
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() in BINARY_TYPES:
        # Not `read_json`: weights have their own limit.
        data = await read_body(
            http.receive, http.headers, http.service.options.max_weights_bytes, http.body_memory
        )
        weights = WeightsInMemory((data,))
        version = check_version(http.query.get("weight_version"))
    else:
        request = await decode_body(http, WeightUpdate)
        try:
            path = msgspec.json.decode(request.update_info, type=_Stored).path
        except msgspec.DecodeError as error:
            raise Unsupported(
                f"update_info: {error}; {SUPPORTED_TRANSFERS_HINT}.", param="update_info"
            ) from None
        weights = find_weights_on_disk(http, path, "update_info.path")
        version = check_version(request.weight_version)
    if not uploads.is_open(name):
        return _render_update("Weights updated", await trainable.update_weights(weights, version))
    if version is not None:
        raise RequestError(
            "Send the version to /finish_weight_update instead.", param="weight_version"
        )
    uploads.add(name, weights, http.service.options.max_weights_bytes)
    return _render_message("Weights received")


class WeightFinish(Struct, frozen=True):
    weight_version: str | None = None


async def finish(uploads: WeightUploads, http: HttpRequest) -> JsonResponse | Responder:
    name, trainable = find_trainable(http)
    # Validated before the upload is removed: after an invalid version the trainer can
    # retry without sending it again.
    version = check_version((await decode_body(http, WeightFinish)).weight_version)
    weights = uploads.finish(name)
    return _render_update(
        "Weight update finished", await trainable.update_weights(weights, version)
    )


class WeightRename(Struct, frozen=True):
    new_version: str


class WeightRenamed(Struct, frozen=True):
    success: bool
    new_version: str


async def set_version(http: HttpRequest) -> JsonResponse | Responder:
    """Set the weight version; vLLM and SGLang share this route."""
    _, trainable = find_trainable(http)
    version = check_version((await decode_body(http, WeightRename)).new_version, "new_version")
    assert version is not None
    await trainable.set_weight_version(version)
    return JsonResponse(msgspec.json.encode(WeightRenamed(True, version)))


class WeightInfo(Struct, frozen=True):
    weight_version: str


async def show_info(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode(WeightInfo(find_trainable(http)[1].weight_version)))


class WeightUpdated(Struct, frozen=True):
    message: str
    weight_version: str


def _render_update(message: str, version: str) -> JsonResponse:
    return JsonResponse(msgspec.json.encode(WeightUpdated(message, version)))


class TransferMessage(Struct, frozen=True):
    message: str


def _render_message(text: str) -> JsonResponse:
    return JsonResponse(msgspec.json.encode(TransferMessage(text)))


MAX_VERSION_LENGTH = 256
"""Maximum characters of a weight version."""


def check_version(text: str | None, param: str = "weight_version") -> str | None:
    """Return the version unchanged. Raises RequestError: it is empty or too long."""
    if text is not None and not 0 < len(text) <= MAX_VERSION_LENGTH:
        raise RequestError(f"`{param}` has 1 to {MAX_VERSION_LENGTH} characters.", param=param)
    return text
