"""Routes by which a trainer gives a running model other weights: vLLM's names, safetensors and nothing else.

Weights come in the body of a request, or lie on this machine where the operator lets them be read. What is pickled is
never read, and no channel of a trainer's own (NCCL, CUDA IPC) is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from ..core.control import Sent, Stored, Trainable
from ..core.errors import NotFound, NotPermitted, RequestError, Unsupported
from .answer import Answer
from .auth import Access
from .body import read_body
from .endpoint import Handler, Http, Whole
from .orders import body, version_of

BINARY = ("application/octet-stream", "application/vnd.safetensors", "application/x-safetensors")
OFFER = (
    "this server takes safetensors: the bytes of a file as the body of POST /update_weights with `Content-Type: "
    'application/octet-stream`, or {"update_info": {"path": "..."}} beneath --weights-dir'
)


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    admin = Access.ADMIN
    return {
        "/init_weight_transfer_engine": (admin, {"POST": initialize}),
        "/shutdown_weight_transfer_engine": (admin, {"POST": shut_down}),
        "/start_weight_update": (admin, {"POST": start}),
        "/update_weights": (admin, {"POST": update}),
        "/finish_weight_update": (admin, {"POST": finish}),
        "/update_weight_version": (admin, {"POST": rename}),
        "/weight_info": (admin, {"GET": info}),
    }


def trained(http: Http) -> tuple[str, Trainable]:
    """The one model whose weights can be replaced, or the one that the query names. Raises NotFound, RequestError."""
    models = http.service.models
    named = http.query.get("model")
    found = list(models) if named is None else [models.find(named)]
    able = [(model.name, model.trainable) for model in found if model.trainable is not None]
    if not able:
        raise NotFound("This server's engine does not support weight updates.", code="unsupported_endpoint")
    if len(able) > 1:
        raise RequestError("Several models are served; name one: ?model=NAME.", param="model")
    return able[0]


def on_disk(http: Http, path: str, param: str) -> Stored:
    """Raises NotPermitted for what the operator does not let be read, RequestError where nothing is."""
    root = http.service.options.weights_dir
    if root is None:
        raise NotPermitted("Weights are loaded from disk only under --weights-dir, which is not set.", param=param)
    if "\0" in path:
        raise RequestError("A path cannot contain NUL.", param=param)
    found = (Path(root) / path).resolve()
    if not found.is_relative_to(Path(root).resolve()):
        raise NotPermitted("This path is not under --weights-dir.", param=param)
    if not found.exists():
        raise RequestError("This path does not exist.", param=param, code="not_found")
    return Stored(str(found))


class _Init(Struct, frozen=True):
    init_info: dict[str, Raw] = {}


async def initialize(http: Http) -> Whole | Answer:
    trained(http)
    asked = await body(http, _Init)
    strange = next((name for name in asked.init_info if name != "backend"), None)
    backend = asked.init_info.get("backend")
    if strange is not None or (backend is not None and bytes(backend) != b'"safetensors"'):
        param = f"init_info.{strange or 'backend'}"
        raise Unsupported(f"This type of weight transfer is not supported: {OFFER}.", param=param)
    return _message("Weight transfer initialized")


async def shut_down(http: Http) -> Whole | Answer:
    """An update that was started and not finished is given up."""
    name, _ = trained(http)
    http.service.uploads.give_up(name)
    return _message("Weight transfer shut down")


async def start(http: Http) -> Whole | Answer:
    name, _ = trained(http)
    http.service.uploads.start(name)
    return _message("Weight update started")


class _Stored(Struct, frozen=True, forbid_unknown_fields=True):
    path: str


class _Update(Struct, frozen=True):
    update_info: Raw = Raw(b"{}")
    weight_version: str | None = None


async def update(http: Http) -> Whole | Answer:
    """A piece of an update that was started, or else all of one."""
    name, trainable = trained(http)
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() in BINARY:
        data = await read_body(http.receive, http.headers, http.service.options.max_weights_bytes)
        weights, version = Sent((data,)), version_of(http.query.get("weight_version"))
    else:
        asked = await body(http, _Update)
        weights, version = on_disk(http, _path(asked.update_info), "update_info.path"), version_of(asked.weight_version)
    uploads = http.service.uploads
    if not uploads.is_open(name):
        return _updated("Weights updated", await trainable.update_weights(weights, version))
    if version is not None:
        raise RequestError("Send the version to /finish_weight_update instead.", param="weight_version")
    uploads.add(name, weights, http.service.options.max_weights_bytes)
    return _message("Weights received")


def _path(info: Raw) -> str:
    try:
        return msgspec.json.decode(info, type=_Stored).path
    except msgspec.DecodeError as error:
        raise Unsupported(f"update_info: {error}; {OFFER}.", param="update_info") from None


class _Finish(Struct, frozen=True):
    weight_version: str | None = None


async def finish(http: Http) -> Whole | Answer:
    name, trainable = trained(http)
    version = version_of((await body(http, _Finish)).weight_version)
    weights = http.service.uploads.finish(name)
    return _updated("Weight update finished", await trainable.update_weights(weights, version))


class _Rename(Struct, frozen=True):
    new_version: str


class _Renamed(Struct, frozen=True):
    success: bool
    new_version: str


async def rename(http: Http) -> Whole | Answer:
    """vLLM's and SGLang's alike."""
    _, trainable = trained(http)
    version = version_of((await body(http, _Rename)).new_version, "new_version")
    assert version is not None
    await trainable.name_weights(version)
    return Whole(msgspec.json.encode(_Renamed(True, version)))


class _Info(Struct, frozen=True):
    weight_version: str


async def info(http: Http) -> Whole | Answer:
    return Whole(msgspec.json.encode(_Info(trained(http)[1].weight_version)))


class _Updated(Struct, frozen=True):
    message: str
    weight_version: str


def _updated(message: str, version: str) -> Whole:
    return Whole(msgspec.json.encode(_Updated(message, version)))


class _Message(Struct, frozen=True):
    message: str


def _message(text: str) -> Whole:
    return Whole(msgspec.json.encode(_Message(text)))
