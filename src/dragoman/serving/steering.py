"""Routes for administrators of engines that can be steered: sleep, pause, replies and failures on order, adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..core.control import Control, PauseMode
from ..core.errors import NotFound, RequestError
from ..pipeline.adapters import Adapter
from ..pipeline.models import ServedModel
from .answer import Answer
from .auth import Access
from .endpoint import Handler, Http, Whole

T = TypeVar("T")


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
        "/v1/load_lora_adapter": (admin, {"POST": load_adapter}),
        "/v1/unload_lora_adapter": (admin, {"POST": unload_adapter}),
        "/dragoman/reply": (admin, {"POST": tell}),
        "/dragoman/faults": (admin, {"GET": show_faults, "PUT": set_faults, "POST": set_faults}),
    }


def _controls(http: Http) -> list[Control]:
    """Of all models, or of the one that the query names. Raises NotFound where there is none."""
    named = http.query.get("model")
    models = list(http.service.models) if named is None else [http.service.models.find(named)]
    controls = [model.control for model in models if model.control is not None]
    if not controls:
        raise NotFound("This server's engine cannot be steered.", code="unsupported_endpoint")
    return controls


def _mode(http: Http) -> PauseMode:
    match http.query.get("mode", "abort"):
        case "abort":
            return "abort"
        case "keep":
            return "keep"
        case _:
            raise RequestError("`mode` is `abort` or `keep`.", param="mode")


async def sleep(http: Http) -> Whole | Answer:
    level, mode = http.query.get("level", "1"), _mode(http)
    if level not in ("1", "2"):
        raise RequestError("`level` is 1 or 2.", param="level")
    for control in _controls(http):
        control.sleep(int(level), mode)
    return Whole(b"")


async def wake_up(http: Http) -> Whole | Answer:
    for control in _controls(http):
        control.wake_up()
    return Whole(b"")


class _Sleeping(Struct, frozen=True):
    is_sleeping: bool


async def is_sleeping(http: Http) -> Whole | Answer:
    return Whole(msgspec.json.encode(_Sleeping(any(control.sleep_level for control in _controls(http)))))


async def pause(http: Http) -> Whole | Answer:
    mode, clear = _mode(http), http.query.get("clear_cache", "true").lower() != "false"
    for control in _controls(http):
        control.pause(mode)
        if clear and mode == "abort":
            control.reset_prefix_cache()
    return Whole(b'{"status":"paused"}')


async def resume(http: Http) -> Whole | Answer:
    for control in _controls(http):
        control.resume()
    return Whole(b'{"status":"resumed"}')


class _Paused(Struct, frozen=True):
    is_paused: bool


async def is_paused(http: Http) -> Whole | Answer:
    return Whole(msgspec.json.encode(_Paused(any(control.is_paused for control in _controls(http)))))


async def tell(http: Http) -> Whole | Answer:
    """The next request's reply; several calls queue up."""
    reply = await _body(http, object)
    for control in _controls(http):
        control.tell(reply)
    return Whole(b"", 204)


async def set_faults(http: Http) -> Whole | Answer:
    faults = await _body(http, object)
    for control in _controls(http):
        control.set_faults(faults)
    return await show_faults(http)


async def show_faults(http: Http) -> Whole | Answer:
    return Whole(_controls(http)[0].faults().encode())


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
    asked = await _body(http, _Load)
    if not asked.lora_name or not asked.lora_path:
        raise RequestError("Both `lora_name` and `lora_path` must be given.", param="lora_name")
    models = http.service.models
    base = _adaptable(http) if asked.base_model_name is None else models.find(asked.base_model_name)
    await models.load_adapter(base, Adapter(asked.lora_name, asked.lora_path), again=asked.load_inplace)
    return _plain(f"Success: LoRA adapter '{asked.lora_name}' added successfully.")


async def unload_adapter(http: Http) -> Whole | Answer:
    asked = await _body(http, _Unload)
    http.service.models.unload_adapter(asked.lora_name)
    return _plain(f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")


def _adaptable(http: Http) -> ServedModel:
    models = list(http.service.models)
    return next((model for model in models if model.adapters is not None), models[0])


async def _body(http: Http, kind: type[T]) -> T:
    try:
        if kind is object:
            return msgspec.json.decode(await http.json())
        return msgspec.json.decode(await http.json(), type=kind)
    except msgspec.DecodeError as error:
        raise RequestError(str(error)) from None


def _plain(text: str) -> Whole:
    return Whole(text.encode(), content_type=(b"content-type", b"text/plain; charset=utf-8"))
