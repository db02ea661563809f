"""Routes for administrators of engines that can be steered: pause, sleep, replies and failures on order, adapters."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from ..core.control import Control, Directed, PauseMode
from ..core.errors import NotFound, RequestError, Unsupported
from ..pipeline.adapters import Adapter
from ..pipeline.models import ServedModel
from .answer import Answer
from .auth import Access
from .endpoint import Handler, Http, Whole
from .orders import body


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    """vLLM's names where it has them."""
    admin = Access.ADMIN
    return {
        "/sleep": (admin, {"POST": sleep}),
        "/wake_up": (admin, {"POST": wake_up}),
        "/is_sleeping": (admin, {"GET": is_sleeping}),
        "/pause": (admin, {"POST": pause}),
        "/resume": (admin, {"POST": resume}),
        "/is_paused": (admin, {"GET": is_paused}),
        "/abort_requests": (admin, {"POST": abort}),
        "/collective_rpc": (admin, {"POST": refuse_rpc}),
        "/v1/load_lora_adapter": (admin, {"POST": load_adapter}),
        "/v1/unload_lora_adapter": (admin, {"POST": unload_adapter}),
        "/dragoman/reply": (admin, {"POST": tell}),
        "/dragoman/faults": (admin, {"GET": show_faults, "PUT": set_faults, "POST": set_faults}),
    }


def controls_of(http: Http) -> list[Control]:
    """Of all models, or of the one that the query names. Raises NotFound where there is none."""
    controls = [model.control for model in _models(http) if model.control is not None]
    if not controls:
        raise NotFound("This server's engine does not support control operations.", code="unsupported_endpoint")
    return controls


def _directed(http: Http) -> list[Directed]:
    """As `controls_of`."""
    directed = [model.directed for model in _models(http) if model.directed is not None]
    if not directed:
        raise NotFound("This server's engine does not support scripted replies.", code="unsupported_endpoint")
    return directed


def _models(http: Http) -> list[ServedModel]:
    named = http.query.get("model")
    return list(http.service.models) if named is None else [http.service.models.find(named)]


def _mode(http: Http) -> PauseMode:
    match http.query.get("mode", "abort"):
        case "abort" | "wait" | "keep" as mode:
            return mode
        case _:
            raise RequestError("`mode` is `abort`, `wait` or `keep`.", param="mode")


class _Asleep(Struct, frozen=True):
    status: str
    level: int


async def sleep(http: Http) -> Whole | Answer:
    """Level 0 merely pauses."""
    level, mode = http.query.get("level", "1"), _mode(http)
    if level not in ("0", "1", "2"):
        raise RequestError("`level` is 0, 1 or 2.", param="level")
    for control in controls_of(http):
        await control.sleep(int(level), mode)
    return Whole(msgspec.json.encode(_Asleep("sleeping", int(level))))


async def wake_up(http: Http) -> Whole | Answer:
    """tags: vLLM's, for a part at a time. Here memory comes back when it is needed, so that all wakes with the last."""
    tags = http.query.getlist("tags")
    strange = set(tags) - {"weights", "kv_cache", "scheduling"}
    if strange:
        raise RequestError("`tags` are `weights`, `kv_cache` and `scheduling`.", param="tags")
    if tags == ["weights"]:
        return Whole(b'{"status":"sleeping","tags":["weights"]}')
    for control in controls_of(http):
        await control.wake_up()
    return Whole(b'{"status":"awake","tags":%s}' % msgspec.json.encode(tags or None))


class _Sleeping(Struct, frozen=True):
    is_sleeping: bool


async def is_sleeping(http: Http) -> Whole | Answer:
    """Also where it merely rests, as vLLM says it."""
    asleep = any(control.sleep_level or control.is_paused for control in controls_of(http))
    return Whole(msgspec.json.encode(_Sleeping(asleep)))


async def pause(http: Http) -> Whole | Answer:
    mode, clear = _mode(http), http.query.get("clear_cache", "true").lower() != "false"
    for control in controls_of(http):
        await control.pause(mode, clear_cache=clear)
    return Whole(b'{"status":"paused"}')


async def resume(http: Http) -> Whole | Answer:
    for control in controls_of(http):
        await control.resume()
    return Whole(b'{"status":"resumed"}')


class _Paused(Struct, frozen=True):
    is_paused: bool


async def is_paused(http: Http) -> Whole | Answer:
    return Whole(msgspec.json.encode(_Paused(any(control.is_paused for control in controls_of(http)))))


class _Abort(Struct, frozen=True):
    request_ids: list[str] | None = None


class _Aborted(Struct, frozen=True):
    status: str
    aborted: int


async def abort(http: Http) -> Whole | Answer:
    """Whatever waits or runs ends now, with what it has said. aborted: sequences; a request may have several."""
    if (await body(http, _Abort)).request_ids:
        message = "Requests cannot be aborted by id: close a request's connection to abort it."
        raise Unsupported(message, param="request_ids")
    count = sum([await control.abort_all() for control in controls_of(http)])
    return Whole(msgspec.json.encode(_Aborted("aborted", count)))


async def refuse_rpc(_: Http) -> Whole | Answer:
    message = "Methods cannot be called by name; use the routes /pause, /sleep and /update_weights."
    raise Unsupported(message, param="method")


async def tell(http: Http) -> Whole | Answer:
    """The next request's reply; several calls queue up."""
    reply = await body(http, object)
    for directed in _directed(http):
        directed.tell(reply)
    return Whole(b"", 204)


async def set_faults(http: Http) -> Whole | Answer:
    faults = await body(http, object)
    for directed in _directed(http):
        directed.set_faults(faults)
    return await show_faults(http)


async def show_faults(http: Http) -> Whole | Answer:
    return Whole(_directed(http)[0].faults().encode())


class _Load(Struct, frozen=True):
    """base_model_name, load_inplace, is_3d_lora_weight: known to vLLM; the first chooses among several models."""

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class _Unload(Struct, frozen=True):
    lora_name: str
    lora_int_id: int | None = None


async def load_adapter(http: Http) -> Whole | Answer:
    asked = await body(http, _Load)
    if not asked.lora_name or not asked.lora_path:
        raise RequestError("Both `lora_name` and `lora_path` must be given.", param="lora_name")
    if "\0" in asked.lora_path:
        raise RequestError("A path cannot contain NUL.", param="lora_path")
    models = http.service.models
    base = _adaptable(http) if asked.base_model_name is None else models.find(asked.base_model_name)
    await models.load_adapter(base, Adapter(asked.lora_name, asked.lora_path), again=asked.load_inplace)
    return _plain(f"Success: LoRA adapter '{asked.lora_name}' added successfully.")


async def unload_adapter(http: Http) -> Whole | Answer:
    asked = await body(http, _Unload)
    http.service.models.unload_adapter(asked.lora_name)
    return _plain(f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")


def _adaptable(http: Http) -> ServedModel:
    models = list(http.service.models)
    return next((model for model in models if model.adapters is not None), models[0])


def _plain(text: str) -> Whole:
    return Whole(text.encode(), content_type=(b"content-type", b"text/plain; charset=utf-8"))
