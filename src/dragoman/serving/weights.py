"""Weight update routes with vLLM's names, for safetensors only.

Weights come in a request's body, or from a directory that the operator allows. Pickled data is never read, and a
trainer's own channels (NCCL, CUDA IPC) are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from ..core.control import Trainable, WeightsInMemory, WeightsOnDisk
from ..core.errors import NotFound, PermissionDenied, RequestError, Unsupported
from .auth import Access
from .body import read_body
from .endpoint import Handler, HttpRequest, JsonResponse
from .routes.admin_body import check_version, decode_body
from .streaming import Responder

BINARY_TYPES = ("application/octet-stream", "application/vnd.safetensors", "application/x-safetensors")
SUPPORTED_TRANSFERS_HINT = (
    "this server takes safetensors: the bytes of a file as the body of POST /update_weights with `Content-Type: "
    'application/octet-stream`, or {"update_info": {"path": "..."}} beneath --weights-dir'
)


def build_routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    admin = Access.ADMIN
    return {
        "/init_weight_transfer_engine": (admin, {"POST": initialize}),
        "/shutdown_weight_transfer_engine": (admin, {"POST": shut_down}),
        "/start_weight_update": (admin, {"POST": start}),
        "/update_weights": (admin, {"POST": update}),
        "/finish_weight_update": (admin, {"POST": finish}),
        "/update_weight_version": (admin, {"POST": set_version}),
        "/weight_info": (admin, {"GET": show_info}),
    }


def find_trainable(http: HttpRequest) -> tuple[str, Trainable]:
    """Return the model whose weights can be replaced, or the one in the query.

    Raises:
        NotFound: no engine supports weight updates.
        RequestError: several models support them.
    """
    models = http.service.models
    name = http.query.get("model")
    candidates = list(models) if name is None else [models.find_loaded(name)]
    trainables = [(model.name, model.trainable) for model in candidates if model.trainable is not None]
    if not trainables:
        raise NotFound("This server's engine does not support weight updates.", code="unsupported_endpoint")
    if len(trainables) > 1:
        raise RequestError("Several models are served; name one: ?model=NAME.", param="model")
    return trainables[0]


def find_weights_on_disk(http: HttpRequest, path: str, param: str) -> WeightsOnDisk:
    """Raises PermissionDenied: the path is not below --weights-dir, or that is not set; RequestError: the path does not
    exist.
    """
    root = http.service.options.weights_dir
    if root is None:
        raise PermissionDenied("Weights are loaded from disk only under --weights-dir, which is not set.", param=param)
    if "\0" in path:
        raise RequestError("A path cannot contain NUL.", param=param)
    location = (Path(root) / path).resolve()
    if not location.is_relative_to(Path(root).resolve()):
        raise PermissionDenied("This path is not under --weights-dir.", param=param)
    if not location.exists():
        raise RequestError("This path does not exist.", param=param, code="not_found")
    return WeightsOnDisk(str(location))


class _Init(Struct, frozen=True):
    init_info: dict[str, Raw] = {}


async def initialize(http: HttpRequest) -> JsonResponse | Responder:
    find_trainable(http)
    request = await decode_body(http, _Init)
    unknown = next((name for name in request.init_info if name != "backend"), None)
    backend = request.init_info.get("backend")
    if unknown is not None or (backend is not None and bytes(backend) != b'"safetensors"'):
        param = f"init_info.{unknown or 'backend'}"
        raise Unsupported(f"This type of weight transfer is not supported: {SUPPORTED_TRANSFERS_HINT}.", param=param)
    return _render_message("Weight transfer initialized")


async def shut_down(http: HttpRequest) -> JsonResponse | Responder:
    """Discard an unfinished update."""
    name, _ = find_trainable(http)
    http.service.weight_uploads.discard(name)
    return _render_message("Weight transfer shut down")


async def start(http: HttpRequest) -> JsonResponse | Responder:
    name, _ = find_trainable(http)
    http.service.weight_uploads.start(name)
    return _render_message("Weight update started")


class _Stored(Struct, frozen=True, forbid_unknown_fields=True):
    path: str


class _Update(Struct, frozen=True):
    update_info: Raw = Raw(b"{}")
    weight_version: str | None = None


async def update(http: HttpRequest) -> JsonResponse | Responder:
    """Add a part to the started update, or apply a complete one."""
    name, trainable = find_trainable(http)
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() in BINARY_TYPES:
        data = await read_body(http.receive, http.headers, http.service.options.max_weights_bytes, http.body_memory)
        weights, version = WeightsInMemory((data,)), check_version(http.query.get("weight_version"))
    else:
        request = await decode_body(http, _Update)
        weights, version = (
            find_weights_on_disk(http, _parse_path(request.update_info), "update_info.path"),
            check_version(request.weight_version),
        )
    uploads = http.service.weight_uploads
    if not uploads.is_open(name):
        return _render_update("Weights updated", await trainable.update_weights(weights, version))
    if version is not None:
        raise RequestError("Send the version to /finish_weight_update instead.", param="weight_version")
    uploads.add(name, weights, http.service.options.max_weights_bytes)
    return _render_message("Weights received")


def _parse_path(info: Raw) -> str:
    try:
        return msgspec.json.decode(info, type=_Stored).path
    except msgspec.DecodeError as error:
        raise Unsupported(f"update_info: {error}; {SUPPORTED_TRANSFERS_HINT}.", param="update_info") from None


class _Finish(Struct, frozen=True):
    weight_version: str | None = None


async def finish(http: HttpRequest) -> JsonResponse | Responder:
    name, trainable = find_trainable(http)
    version = check_version((await decode_body(http, _Finish)).weight_version)
    weights = http.service.weight_uploads.finish(name)
    return _render_update("Weight update finished", await trainable.update_weights(weights, version))


class _Rename(Struct, frozen=True):
    new_version: str


class _Renamed(Struct, frozen=True):
    success: bool
    new_version: str


async def set_version(http: HttpRequest) -> JsonResponse | Responder:
    """Set the weight version; vLLM and SGLang share this route."""
    _, trainable = find_trainable(http)
    version = check_version((await decode_body(http, _Rename)).new_version, "new_version")
    assert version is not None
    await trainable.set_weight_version(version)
    return JsonResponse(msgspec.json.encode(_Renamed(True, version)))


class _Info(Struct, frozen=True):
    weight_version: str


async def show_info(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode(_Info(find_trainable(http)[1].weight_version)))


class _Updated(Struct, frozen=True):
    message: str
    weight_version: str


def _render_update(message: str, version: str) -> JsonResponse:
    return JsonResponse(msgspec.json.encode(_Updated(message, version)))


class _Message(Struct, frozen=True):
    message: str


def _render_message(text: str) -> JsonResponse:
    return JsonResponse(msgspec.json.encode(_Message(text)))
