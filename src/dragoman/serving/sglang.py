"""SGLang's routes, for the RL trainers and routers that are written against it: they mean what vLLM's do here."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from ..core.errors import RequestError, Unsupported
from ..dialects.base import Call
from ..dialects.sglang import read_sglang
from ..dialects.tgi import read_tgi, speaks_tgi
from ..pipeline.models import EmbedderBackend, ScorerBackend, ServedModel
from .answer import Answer
from .auth import Access
from .endpoint import Handler, Http, Made, Whole
from .generate import generated, off_the_loop, read_body
from .orders import body, version_of
from .steering import controls_of
from .tgi import generate as generate_as_tgi
from .utility import health
from .vllm import reset_caches
from .weights import OFFER, on_disk, trained

PLAIN = (b"content-type", b"text/plain; charset=utf-8")


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    public, user, admin = Access.PUBLIC, Access.USER, Access.ADMIN
    return {
        "/generate": (user, {"POST": generate, "PUT": generate}),
        "/health_generate": (public, {"GET": health}),
        "/get_model_info": (user, {"GET": model_info}),
        "/model_info": (user, {"GET": model_info}),
        "/get_weight_version": (user, {"GET": weight_version}),
        "/update_weights_from_disk": (admin, {"POST": update_from_disk}),
        **{path: (admin, {"POST": refuse_transfer}) for path in TRANSFERS},
        "/pause_generation": (admin, {"POST": pause}),
        "/continue_generation": (admin, {"POST": go_on}),
        "/abort_request": (admin, {"POST": abort}),
        "/flush_cache": (admin, {"GET": flush, "POST": flush}),
        "/release_memory_occupation": (admin, {"POST": release}),
        "/resume_memory_occupation": (admin, {"POST": resume}),
    }


async def generate(http: Http) -> Made:
    """TGI and LightLLM have this path too: the body tells whose it is."""
    body = await http.json()
    if await off_the_loop(speaks_tgi, body):
        return await generate_as_tgi(http, body)
    return await generated(http, await read_body(http, body, read_sglang))


async def read_either(http: Http) -> Call:
    """What is asked on that path, whoever asks it. Raises RequestError."""
    body = await http.json()
    return await read_body(http, body, read_tgi if await off_the_loop(speaks_tgi, body) else read_sglang)


TRANSFERS = (
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
)
"""Channels of SGLang's own: pickled tensors, NCCL, CUDA IPC."""


async def refuse_transfer(http: Http) -> Whole | Answer:
    raise Unsupported(f"{http.path}: pickled tensors and process groups are not supported; {OFFER}.")


class _ModelInfo(Struct, frozen=True):
    """Names and no paths: what lies on this machine is not told."""

    model_path: str
    served_model_name: str
    tokenizer_path: str
    is_generation: bool
    preferred_sampling_params: None
    weight_version: str | None


async def model_info(http: Http) -> Whole | Answer:
    model = await _model(http)
    version = None if model.trainable is None else model.trainable.weight_version
    generates = not isinstance(model.backend, EmbedderBackend | ScorerBackend)
    return Whole(msgspec.json.encode(_ModelInfo(model.name, model.name, model.name, generates, None, version)))


async def _model(http: Http) -> ServedModel:
    models = http.service.models
    return await models.ready(http.query.get("model") or models.places[0].name)


class _Version(Struct, frozen=True):
    weight_version: str


async def weight_version(http: Http) -> Whole | Answer:
    return Whole(msgspec.json.encode(_Version(trained(http)[1].weight_version)))


class _FromDisk(Struct, frozen=True):
    """flush_cache: false cannot be had, since what other weights computed is worth nothing."""

    model_path: str
    load_format: str | None = None
    weight_version: str | None = None
    abort_all_requests: bool = False
    flush_cache: bool = True


class _Done(Struct, frozen=True):
    success: bool
    message: str
    num_paused_requests: int = 0


async def update_from_disk(http: Http) -> Whole | Answer:
    _, trainable = trained(http)
    asked = await body(http, _FromDisk)
    if asked.load_format not in (None, "auto", "safetensors"):
        raise Unsupported("Only safetensors are supported.", param="load_format")
    weights = on_disk(http, asked.model_path, "model_path")
    if asked.abort_all_requests:
        await _abort_all(http)
    version = await trainable.update_weights(weights, version_of(asked.weight_version))
    warnings = (
        ()
        if asked.flush_cache
        else ("flush_cache is ignored: the cache is always flushed, because it belongs to the old weights",)
    )
    done = _Done(True, f"Weights updated. Weight version is {version}.")
    return Whole(msgspec.json.encode(done), warnings=warnings)


class _Pause(Struct, frozen=True):
    mode: str = "abort"


async def pause(http: Http) -> Whole | Answer:
    """In every mode what comes waits. abort: what runs ends; retract: it is computed again; in_place: it goes on."""
    mode = (await body(http, _Pause)).mode
    if mode not in ("abort", "retract", "in_place"):
        raise RequestError("`mode` is `abort`, `retract` or `in_place`.", param="mode")
    for control in controls_of(http):
        await control.pause("keep", clear_cache=mode == "retract")
        if mode == "abort":
            await control.abort_all()
    return Whole(b'{"message":"Generation paused successfully.","status":"ok"}')


async def go_on(http: Http) -> Whole | Answer:
    for control in controls_of(http):
        await control.resume()
    return Whole(b'{"message":"Generation continued successfully.","status":"ok"}')


class _Abort(Struct, frozen=True):
    rid: str | None = None
    abort_all: bool = False


async def abort(http: Http) -> Whole | Answer:
    if not (await body(http, _Abort)).abort_all:
        message = "Requests cannot be aborted by id: close a request's connection to abort it."
        raise Unsupported(message, param="rid")
    await _abort_all(http)
    return Whole(b"")


async def _abort_all(http: Http) -> None:
    for control in controls_of(http):
        await control.abort_all()


async def flush(http: Http) -> Whole | Answer:
    if not await reset_caches(http):
        return Whole(b"Flush cache failed: a part of it is in use.\n", 400, PLAIN)
    return Whole(b"Cache flushed.\n", content_type=PLAIN)


class _Tags(Struct, frozen=True):
    tags: list[str] | None = None


async def release(http: Http) -> Whole | Answer:
    """What runs goes on when the memory is back. Without tags weights are kept by an engine that cannot let them go."""
    tags = await _tags(http)
    warnings: list[str] = []
    for control in controls_of(http):
        try:
            await control.sleep(1 if tags == {"kv_cache"} else 2, "keep")
        except Unsupported as error:
            if tags:
                raise
            await control.sleep(1, "keep")
            warnings.append(f"weights are kept: {error.message}")
    return Whole(b"null", warnings=tuple(warnings))


async def resume(http: Http) -> Whole | Answer:
    """Of the weights alone: they come with the next update, and until then it sleeps."""
    if await _tags(http) != {"weights"}:
        for control in controls_of(http):
            await control.wake_up()
    return Whole(b"null")


async def _tags(http: Http) -> set[str]:
    tags = set((await body(http, _Tags)).tags or ())
    if tags - {"weights", "kv_cache"}:
        raise Unsupported("`tags` are `weights` and `kv_cache`.", param="tags")
    return tags
