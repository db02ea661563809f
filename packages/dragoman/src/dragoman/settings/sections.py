"""Types of structured settings: sampling defaults, `models`, `instances`, `ray`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct

from ..core.request import Sampling

_Probability = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class GenerationConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults under the names of a model's generation_config.json."""

    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: _Probability | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        numbers = (value for value in msgspec.structs.astuple(self) if value is not None)
        if not all(map(math.isfinite, numbers)):
            raise ValueError("every number must be finite")

    def merge_into(self, defaults: Sampling) -> Sampling:
        """Return the defaults overridden by these values. A `top_k` of -1 becomes 0:
        both disable it.
        """
        overrides = {
            name: value for name, value in msgspec.structs.asdict(self).items() if value is not None
        }
        overrides.pop("max_new_tokens", None)
        if "top_k" in overrides:
            overrides["top_k"] = max(overrides["top_k"], 0)
        return msgspec.structs.replace(defaults, **overrides)


class ModelEntry(Struct, frozen=True):
    """One of several models.

    overrides: the model's own settings by name; the server's settings apply otherwise.
    aliases: further names in the API.
    ttl: idle seconds after which it is unloaded; None means never.
    pinned: loaded at startup and never unloaded.
    memory: size in bytes; None to estimate it from the files.
    """

    name: str
    overrides: tuple[tuple[str, Any], ...] = ()
    aliases: tuple[str, ...] = ()
    ttl: float | None = None
    pinned: bool = False
    memory: int | None = None


class ModelEntries(Struct, frozen=True):
    """The `models` of a settings file, in order."""

    entries: tuple[ModelEntry, ...] = ()


class Instance(Struct, frozen=True):
    """One of several simulated servers in a process.

    overrides: the server's own settings by name; the process's settings apply
        otherwise.
    """

    overrides: tuple[tuple[str, Any], ...] = ()


class Instances(Struct, frozen=True):
    """The simulated servers in order. If empty, there is one server with the process's
    settings.
    """

    items: tuple[Instance, ...] = ()


_AtLeastOne = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(ge=0, le=86400)]


class RaySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `ray` of a settings file.

    replicas: number of replicas; with max_replicas, the initial number.
    min_replicas, max_replicas: bounds of autoscaling; without max_replicas the number
        is fixed.
    target_requests, target_waiting_tokens, target_kv_usage: targets per replica, on
        average: running and waiting requests, waiting prompt tokens, and the share of
        its KV cache in use. The autoscaler adds replicas when any target is exceeded.
    upscale_delay, downscale_delay: seconds for which the autoscaler must want another
        number before it changes.
    cpus, gpus: resources that a replica reserves on its node.
    routing: requests that go to the same replica: `prefix`: those that share a
        conversation or a prompt prefix; `model`: those for the same model or LoRA
        adapter, if replicas cannot hold all of them at once; `session`: those with the
        same session header. `load` sends each request to the least loaded replica.
    haproxy: use HAProxy instead of Ray's Python proxy; None means if it is available.
    drain_timeout: seconds that a replica may take to finish its requests when it is
        removed.
    """

    replicas: _AtLeastOne = 1
    min_replicas: _AtLeastOne = 1
    max_replicas: _AtLeastOne | None = None
    target_requests: Annotated[float, Meta(gt=0)] = 32.0
    target_waiting_tokens: _AtLeastOne = 8192
    target_kv_usage: Annotated[float, Meta(gt=0, le=1)] = 0.8
    upscale_delay: _Seconds = 10.0
    downscale_delay: _Seconds = 300.0
    cpus: Annotated[float, Meta(ge=0)] = 1.0
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    routing: Literal["prefix", "model", "session", "load"] = "prefix"
    haproxy: bool | None = None
    drain_timeout: _Seconds = 120.0


def read_ray_settings(raw: object) -> RaySettings:
    """Parse the section `ray`, from JSON text or from the value in a file.

    Raises:
        ValueError: the section is invalid; the message names the field.
    """
    try:
        fields = msgspec.json.decode(raw) if isinstance(raw, str) else raw
        if isinstance(fields, dict):
            fields = {
                str(name).replace("-", "_"): value
                for name, value in cast("dict[Any, Any]", fields).items()
            }
        settings = msgspec.convert(fields, RaySettings, strict=False)
    except msgspec.MsgspecError as error:
        problem, _, path = str(error).partition(" - at `$.")
        raise ValueError(f"{path.rstrip('`')}: {problem}" if path else problem) from None
    if settings.max_replicas is not None and settings.max_replicas < max(
        settings.min_replicas, settings.replicas
    ):
        raise ValueError("max_replicas must not be less than min_replicas and replicas")
    return settings
