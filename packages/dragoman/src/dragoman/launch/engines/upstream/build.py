"""Builds `http://HOST:PORT/v1`: another server, or several replicas of the same model,
as the engine.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from dragoman_http import ClientTimeouts

from ....core.encoder_requests import EncodingTask
from ....core.engine_interfaces import EngineInterfaces
from ....core.errors import EngineError
from ....core.request import SamplingOptions
from ....engines.upstream import (
    KINDS,
    DiscoveredModel,
    ModelTasks,
    ServerKind,
    Upstream,
    UpstreamConfig,
    UpstreamControl,
    UpstreamDefaults,
    UpstreamEngine,
    discover,
    find_kind_by_url,
)
from ....parsers import registry
from ....pipeline.engine_backends import EventBackend, TextEncoderBackend
from ....pipeline.lora_adapters import Adapter, Adapters
from ....pipeline.output_formats import OutputFormats
from ....pipeline.served_model import ModelDetails, ServedModel
from ....serving.clock import Clock
from ....settings import Settings
from ...model_metadata import resolve_served_names
from .settings import UpstreamSettings

UNKNOWN_LENGTH = 131_072
"""Context length in tokens if neither the upstream nor the settings state one; the
upstream rejects longer requests.
"""

_TASKS = {"generate": None, "embed": EncodingTask.EMBEDDINGS, "score": EncodingTask.SCORING}


def build_upstream(settings: Settings, clock: Clock, urls: str) -> ServedModel:
    """Build a model whose engine is one or several upstreams.

    urls: URLs separated by commas. The first upstream that responds supplies the
        details that the settings leave open.
    """
    own = settings.of(UpstreamSettings)
    upstreams = _build_upstreams(
        own, [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]
    )
    discovered = _discover(own, upstreams)
    reasoning = (
        None
        if settings.reasoning_parser is None
        else registry.find_reasoning_format(settings.reasoning_parser)
    )
    tools = (
        None
        if settings.tool_call_parser is None
        else registry.find_tool_format(settings.tool_call_parser)
    )
    sampling = {
        name: value
        for name, value in msgspec.structs.asdict(settings.override_generation_config).items()
        if value is not None
    }
    max_tokens = sampling.pop("max_new_tokens", None)
    if discovered.kind.api.requires_max_tokens:
        max_tokens = max_tokens or discovered.max_tokens
    if "top_k" in sampling:
        # -1 disables the limit in a generation_config.json, as 0 does here.
        sampling["top_k"] = max(sampling["top_k"], 0)
    config = UpstreamConfig(
        upstreams,
        discovered.model,
        discovered.kind,
        UpstreamDefaults(SamplingOptions(**sampling), max_tokens),
        read_timeout=own.upstream_timeout,
        retries=own.upstream_retries,
        native_tools=tools is None,
        native_reasoning=reasoning is None,
        encoding_tasks=discovered.tasks.encoding,
    )
    engine = UpstreamEngine(config)
    name, aliases = resolve_served_names(settings, discovered.model)
    control = adapters = None
    if discovered.kind.has_admin_routes and discovered.tasks.generates:
        control = UpstreamControl(upstreams, ClientTimeouts(read=own.upstream_timeout))
        loaded = tuple(Adapter(adapter, adapter) for adapter in discovered.adapters)
        adapters = Adapters(loaded, control, is_remote=True)
    return ServedModel(
        name,
        EventBackend(engine) if discovered.tasks.generates else TextEncoderBackend(engine),
        settings.max_model_len or discovered.max_model_len or UNKNOWN_LENGTH,
        int(clock.now()),
        aliases,
        details=ModelDetails(root=discovered.model),
        formats=OutputFormats(reasoning, tools),
        interfaces=EngineInterfaces(control=control, cache=control),
        adapters=adapters,
    )


def _build_upstreams(settings: UpstreamSettings, urls: list[str]) -> tuple[Upstream, ...]:
    for url in urls:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "an upstream's key belongs in DRAGOMAN_UPSTREAM_API_KEY, not in its URL"
            )
        is_http = parts.scheme in ("http", "https") and parts.hostname
        if (
            not is_http
            or parts.query
            or parts.fragment
            or any(character.isspace() for character in url)
        ):
            raise ValueError(f"an upstream URL must have the form http://HOST:PORT/v1, not {url}")
    # Users often configure only the host, as for the SDKs of some vendors.
    kinds = [_find_kind(settings, url) for url in urls]
    urls = [
        url if urlsplit(url).path or kind is None else url + kind.api.version
        for url, kind in zip(urls, kinds, strict=True)
    ]
    weights = [float(weight) for text in settings.upstream_weight for weight in text.split(",")]
    keys = settings.upstream_api_key
    if weights and len(weights) != len(urls):
        raise ValueError(f"there are {len(urls)} upstreams and {len(weights)} upstream weights")
    if len(keys) not in (0, 1, len(urls)):
        raise ValueError(
            f"there are {len(urls)} upstreams and {len(keys)} upstream keys; give one, or one for "
            f"each"
        )
    for weight in weights:
        if not 0 < weight <= 1_000_000:
            raise ValueError(
                f"an upstream's weight must be above 0 and at most 1000000, not {weight:g}"
            )
    key_by_url = keys if len(keys) == len(urls) else (keys or (None,)) * len(urls)
    return tuple(
        Upstream(*fields)
        for fields in zip(urls, weights or [1.0] * len(urls), key_by_url, strict=True)
    )


def _discover(settings: UpstreamSettings, upstreams: tuple[Upstream, ...]) -> DiscoveredModel:
    """Discover the model and the upstream's kind.

    If both are configured no request is sent, so that this server can start before its
    upstreams.
    """
    kind = _find_kind(settings, upstreams[0].url)
    # None means that discovery requests the tasks from the upstream.
    tasks = None
    names = {name.strip() for option in settings.upstream_task for name in option.split(",")}
    if unknown := names - _TASKS.keys():
        raise ValueError(
            f"--upstream-task: expected `generate`, `embed` or `score`, not {min(unknown)!r}"
        )
    if names:
        encoding_tasks = (_TASKS[name] for name in names)
        tasks = ModelTasks(
            "generate" in names, frozenset(task for task in encoding_tasks if task is not None)
        )
    if kind is not None and settings.upstream_model is not None:
        if tasks is None and not kind.generates:
            raise ValueError(
                "--upstream-task: set `embed` or `score`, as an upstream of this kind does not "
                "generate"
            )
        return DiscoveredModel(settings.upstream_model, tasks=tasks or ModelTasks(), kind=kind)
    for upstream in upstreams[:-1]:
        try:
            return discover(upstream, settings.upstream_model, kind=kind, tasks=tasks)
        # Only the last upstream's error is reported: this server can start if one of
        # several upstreams is up.
        except EngineError:
            continue
    return discover(upstreams[-1], settings.upstream_model, kind=kind, tasks=tasks)


def _find_kind(settings: UpstreamSettings, url: str) -> ServerKind | None:
    return KINDS.get(settings.upstream_kind) or find_kind_by_url(url)
