"""Ollama's routes: generation, embeddings and models."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from ...core.control import ModelPuller, PullProgress
from ...core.embeddings import Embeddings
from ...core.engine import Feature
from ...core.errors import ModelNotFound, NotFound, PermissionDenied, RequestError, Unsupported
from ...core.metrics import EngineStats
from ...core.request import Conversation, Sampling
from ...dialects.base import GenerationCall, ReaderOptions
from ...dialects.body import abbreviate
from ...dialects.ollama import (
    AnswerClock,
    LATEST,
    LineFraming,
    OllamaCall,
    OllamaEmbedCall,
    OllamaModelCard,
    OllamaTimings,
    RunningModel,
    list_served_progress,
    read_embed,
    read_embeddings,
    read_model_reference,
    read_ollama_chat,
    read_ollama_generate,
    render_embed,
    render_embeddings,
    render_load_status,
    render_pull_progress,
    render_running_models,
    render_show,
    render_tags,
)
from ...pipeline.encoding import embed, find_embedder
from ...pipeline.metrics import RequestMetrics, measure
from ...pipeline.models import (
    EmbedderBackend,
    ModelDetails,
    ModelSlot,
    Models,
    ServedModel,
    TokenBackend,
    is_name_pattern,
)
from ...pipeline.run import AdmittedRun
from ...prompts.template import build_infill_prompt
from ..auth import Access
from ..disconnect import cancel_on_disconnect
from ..endpoint import Handler, HttpRequest, JsonResponse, OLLAMA, Route
from ..generate import (
    admit_call,
    build_header,
    build_responder,
    build_stream_headers,
    collect_warnings,
    parse_body,
)
from ..streaming import EventBatches, ReplayResponder, Responder

CallReader = Callable[..., OllamaCall]
T = TypeVar("T")

OLLAMA_VERSION = "0.12.11"
"""The version of Ollama whose API this is: the first with all supported fields. Some
clients require a minimum.
"""
NDJSON = (b"content-type", b"application/x-ndjson")
NEVER = 292 * 365.25 * 86_400
"""Seconds until a model that is never unloaded expires: the largest duration in Go,
which Ollama reports.
"""

_CAPABILITIES = (
    ("generation", "completion"),
    (Feature.TOOLS.value, "tools"),
    ("infill", "insert"),
    (Feature.IMAGES.value, "vision"),
    ("embeddings", "embedding"),
    ("reasoning", "thinking"),
)
"""Capabilities with Ollama's names for them."""
_REFUSED = {
    "/api/delete": ("DELETE", "models are files of the operator, and are deleted there"),
    "/api/copy": ("POST", "an alias is set with --served-model-name"),
    "/api/create": ("POST", "a model is configured in the settings file"),
    "/api/push": ("POST", "models are not uploaded anywhere"),
    "/api/blobs/{digest}": ("POST", "models are not uploaded"),
}


def build_routes(puller: ModelPuller | None) -> Sequence[Route]:
    """Build the routes.

    puller: downloads models for /api/pull; None rejects such requests.
    """
    user = Access.USER
    handlers: Mapping[str, Handler] = {
        "/api/chat": partial(_generate, read=read_ollama_chat, is_chat=True),
        "/api/generate": partial(_generate, read=read_ollama_generate, is_chat=False),
        "/api/embed": create_embeddings,
        "/api/embeddings": create_embedding,
    }
    return (
        *(Route(path, user, OLLAMA, {"POST": handler}) for path, handler in handlers.items()),
        Route("/api/tags", user, OLLAMA, {"GET": list_tags}),
        Route("/api/show", user, OLLAMA, {"POST": show}),
        Route("/api/ps", user, OLLAMA, {"GET": list_running}),
        Route("/api/version", Access.PUBLIC, OLLAMA, {"GET": show_version}, root="/api"),
        Route("/api/pull", user, OLLAMA, {"POST": partial(pull, puller=puller)}),
        *(
            Route(
                path,
                user,
                OLLAMA,
                {method: partial(refuse, f"{method} {path.partition('/{')[0]}", reason)},
            )
            for path, (method, reason) in _REFUSED.items()
        ),
    )


class AnswerTimer:
    """Measures the durations of an answer: the load of the model, prefill and decode.

    monotonic: clock, seconds.
    arrived_at: arrival of the request, seconds on the same clock.
    """

    def __init__(self, monotonic: Callable[[], float], arrived_at: float) -> None:
        self._monotonic = monotonic
        self._arrived_at = arrived_at
        self._load_seconds = 0.0
        self._metrics: RequestMetrics | None = None

    async def load_model(self, models: Models, name: str) -> ServedModel:
        """Call `Models.load_and_find` and measure its duration."""
        started_at = self._monotonic()
        model = await models.load_and_find(name)
        self._load_seconds = self._monotonic() - started_at
        return model

    def measure_run(self, run: AdmittedRun) -> EventBatches:
        """Return the batches of the run; the durations are measured while they pass."""
        # Separate counters: this one answer must not be counted twice in /metrics.
        self._metrics = RequestMetrics(EngineStats(), self._monotonic)
        if run.direct is not None:
            run.direct.add_observer(self._metrics.observe_batch)
        return measure(run.batches, self._metrics)

    def measure(self) -> OllamaTimings:
        metrics = self._metrics
        return OllamaTimings(
            total=_to_nanoseconds(self._monotonic() - self._arrived_at),
            load=_to_nanoseconds(self._load_seconds),
            prompt_eval=0 if metrics is None else _to_nanoseconds(metrics.prefill_seconds),
            eval=0 if metrics is None else _to_nanoseconds(metrics.decode_seconds),
        )


def _to_nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


async def _generate(
    http: HttpRequest, *, read: CallReader, is_chat: bool
) -> JsonResponse | Responder:
    service = http.service
    timer = AnswerTimer(service.clock.monotonic, http.started_at)
    ollama_call = await read_ollama_call(
        http, partial(read, clock=AnswerClock(service.clock.now, timer.measure))
    )
    slot, name = find_model_slot(service.models, ollama_call.model)
    # Ollama's clients unload a model with an empty prompt and `keep_alive: 0`.
    if not ollama_call.has_prompt and ollama_call.keep_alive == 0:
        await unload(http, slot)
        return _render_status(http, ollama_call, "unload", is_chat=is_chat)
    model = await timer.load_model(service.models, name)
    call = _adapt_call(http, ollama_call, slot, model, name)
    # Ollama's clients preload a model with an empty prompt.
    if not ollama_call.has_prompt:
        apply_keep_alive(http, slot, ollama_call.keep_alive)
        return _render_status(http, replace(ollama_call, call=call), "load", is_chat=is_chat)
    admitted = await admit_call(http, call, build_header(http, call))
    # The admitted run keeps the model loaded until it ends.
    apply_keep_alive(http, slot, ollama_call.keep_alive)
    admitted = replace(admitted, run=replace(admitted.run, batches=timer.measure_run(admitted.run)))
    return build_responder(
        http,
        call.writer(admitted.header),
        admitted,
        admitted.run.batches,
        stream=call.stream,
        content_type=NDJSON,
    )


def _render_status(
    http: HttpRequest, call: OllamaCall, reason: str, *, is_chat: bool
) -> JsonResponse:
    warnings = collect_warnings(call.call, strict=http.service.options.strict)
    return JsonResponse(
        render_load_status(call.model, http.service.clock.now(), reason, is_chat=is_chat),
        warnings=warnings,
    )


def _adapt_call(
    http: HttpRequest, ollama_call: OllamaCall, slot: ModelSlot, model: ServedModel, name: str
) -> GenerationCall:
    """Adapt the call to its model: the name, the warnings, and the prompt of a
    fill-in-the-middle request.

    Raises:
        RequestError: the model does not support the call.
    """
    call = ollama_call.call
    warnings = list(ollama_call.call.warnings)
    if ollama_call.num_ctx is not None and ollama_call.num_ctx > model.max_model_len:
        warnings.append(
            f"options.num_ctx: the context of this model is {model.max_model_len} tokens"
        )
    warnings += explain_keep_alive(http, slot, ollama_call.keep_alive)
    request = call.requests[0]
    backend = model.backend
    suffix = ollama_call.suffix
    prompt = request.prompt
    renders_tokens = isinstance(backend, TokenBackend)
    if isinstance(prompt, Conversation):
        can_think = model.reasoning is not None or model.capabilities.native_reasoning
        if prompt.reasoning.enabled and not can_think:
            raise RequestError(f"{abbreviate(name)} does not support thinking", param="think")
        if prompt.preceding_ids and not renders_tokens:
            raise Unsupported(
                f"{abbreviate(name)} does not support context: its engine takes no tokens"
            )
    if suffix is not None:
        tokens = model.infill_tokens
        if tokens is None or not isinstance(backend, TokenBackend) or not isinstance(prompt, str):
            raise Unsupported(f"{abbreviate(name)} does not support insert", param="suffix")
        infill = build_infill_prompt(backend.tokenizer, tokens, prompt, suffix)
        limits = replace(request.limits, stop_token_ids=infill.stop_ids)
        request = replace(request, prompt=infill.ids, limits=limits)
    request = replace(request, model=name, return_prompt=request.return_prompt and renders_tokens)
    return replace(call, requests=(request,), warnings=tuple(warnings))


async def create_embeddings(http: HttpRequest) -> JsonResponse | Responder:
    timer = AnswerTimer(http.service.clock.monotonic, http.started_at)
    call, warnings, embeddings = await _embed(http, read_embed, timer)
    timings = timer.measure()

    def write() -> bytes:
        return render_embed(call.model, embeddings, timings.total, timings.load)

    return JsonResponse(await anyio.to_thread.run_sync(write), warnings=warnings)


async def create_embedding(http: HttpRequest) -> JsonResponse | Responder:
    timer = AnswerTimer(http.service.clock.monotonic, http.started_at)
    _, warnings, embeddings = await _embed(http, read_embeddings, timer)
    return JsonResponse(render_embeddings(embeddings), warnings=warnings)


async def _embed(
    http: HttpRequest, read: Callable[[bytes, ReaderOptions], OllamaEmbedCall], timer: AnswerTimer
) -> tuple[OllamaEmbedCall, tuple[str, ...], Embeddings | None]:
    """Return the call, the warnings, and the embeddings: None without input, which only
    loads the model.
    """
    call = await read_ollama_call(http, read)
    slot, name = find_model_slot(http.service.models, call.model)
    call_with_warnings = replace(
        call, warnings=(*call.warnings, *explain_keep_alive(http, slot, call.keep_alive))
    )
    warnings = collect_warnings(call_with_warnings, strict=http.service.options.strict)
    model = await timer.load_model(http.service.models, name)
    with model.keep_loaded():
        apply_keep_alive(http, slot, call.keep_alive)
        if not call.texts.inputs:
            return call, warnings, None
        work = embed(model, call.texts, call.dimensions, call.normalize)
        return call, warnings, await cancel_on_disconnect(http.on_disconnect, work)


# Routes of models, and the rules for model names and `keep_alive` that all routes
# share.


async def refuse(operation: str, reason: str, _: HttpRequest) -> JsonResponse | Responder:
    raise Unsupported(f"{operation} is not supported: {reason}.")


def find_model_slot(models: Models, name: str) -> tuple[ModelSlot, str]:
    """Find a model by name, alias or adapter, with or without `:latest`; return its
    slot and the matching name.

    Raises:
        ModelNotFound: there is no such model; the message is like Ollama's.
    """
    served_names = {
        served_name for slot in models.slots for served_name in (slot.name, *slot.aliases)
    }
    matching_name = name if name in served_names else name.removesuffix(LATEST)
    try:
        return models.find_slot(matching_name), matching_name
    except ModelNotFound:
        served = ", ".join(slot.name for slot in models.slots)
        raise ModelNotFound(
            f"model {abbreviate(name)} not found, served here: {served}", param="model"
        ) from None


async def unload(http: HttpRequest, slot: ModelSlot) -> None:
    """Unload a model, when its last request has finished.

    Raises:
        PermissionDenied: the caller may not control models.
        Unsupported: the model is never unloaded.
    """
    if not _may_control(http):
        raise PermissionDenied("Unloading a model needs an administrator's key.")
    if slot.is_pinned:
        raise Unsupported(
            f"The model {abbreviate(slot.name)} cannot be unloaded: it is not loaded on demand.",
            param="keep_alive",
        )
    await http.service.models.unload(slot)


def explain_keep_alive(
    http: HttpRequest, slot: ModelSlot, keep_alive: float | None
) -> tuple[str, ...]:
    """Return a warning if `keep_alive` has no effect."""
    if keep_alive is None or (slot.is_pinned and keep_alive == math.inf):
        return ()
    if slot.is_pinned:
        return ("keep_alive is ignored: this model is always loaded",)
    return () if _may_control(http) else ("keep_alive is ignored: it needs an administrator's key",)


def apply_keep_alive(http: HttpRequest, slot: ModelSlot, keep_alive: float | None) -> None:
    """Apply `keep_alive` if it is allowed, see `explain_keep_alive`. Call it while the
    model is in use.
    """
    if keep_alive is not None and not slot.is_pinned and _may_control(http):
        slot.keep_for(None if keep_alive == math.inf else keep_alive)


def _may_control(http: HttpRequest) -> bool:
    return http.caller.is_admin or http.service.tenancy.keyring.is_open


async def read_ollama_call(http: HttpRequest, read: Callable[[bytes, ReaderOptions], T]) -> T:
    """Read a body. No content type is required, because LiteLLM sends none. Raises
    RequestError.
    """
    return await parse_body(http, await http.read_json(allow_untyped=True), read)


async def list_tags(http: HttpRequest) -> JsonResponse | Responder:
    slots = http.service.models.slots
    names = [
        (slot, name)
        for slot in slots
        for name in (slot.name, *slot.aliases)
        if not is_name_pattern(name)
    ]
    return JsonResponse(render_tags([_build_card(slot, name) for slot, name in names]))


async def list_running(http: HttpRequest) -> JsonResponse | Responder:
    now = http.service.clock.now()
    loaded_slots = [slot for slot in http.service.models.slots if slot.model is not None]
    expiries = [NEVER if slot.expires_in is None else slot.expires_in for slot in loaded_slots]
    running = [
        RunningModel(_build_card(slot, slot.name), now + min(expiry, NEVER))
        for slot, expiry in zip(loaded_slots, expiries, strict=True)
    ]
    return JsonResponse(render_running_models(running))


async def show(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_ollama_call(http, read_model_reference)
    warnings = collect_warnings(call, strict=http.service.options.strict)
    slot, name = find_model_slot(http.service.models, call.model)
    return JsonResponse(render_show(_build_card(slot, name)), warnings=warnings)


async def show_version(_: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse(msgspec.json.encode({"version": OLLAMA_VERSION}))


async def pull(http: HttpRequest, *, puller: ModelPuller | None) -> JsonResponse | Responder:
    """Download a model and report the progress. A model that is already served counts
    as downloaded.
    """
    call = await read_ollama_call(http, read_model_reference)
    warnings = collect_warnings(call, strict=http.service.options.strict)
    reports = _find_reports(http, puller, call.model)
    if not call.stream:
        last = PullProgress("success")
        async for progress in reports:
            last = progress
        return JsonResponse(render_pull_progress(last), warnings=warnings)
    lines = (render_pull_progress(progress) async for progress in reports)
    headers = build_stream_headers(http, warnings, NDJSON)
    return ReplayResponder(
        lines, LineFraming(), http.build_response_start(headers), http.service.stream_monitor
    )


def _find_reports(
    http: HttpRequest, puller: ModelPuller | None, name: str
) -> AsyncGenerator[PullProgress]:
    """Return the progress reports of a download, or of a model that is already served.

    Raises:
        NotFound: the model is not served, and this server does not download models.
        PermissionDenied: the caller may not download models.
    """
    try:
        return _report_served(_build_card(*find_model_slot(http.service.models, name)))
    except ModelNotFound:
        pass
    if puller is None:
        raise NotFound(
            f"pull model manifest: model {abbreviate(name)} is not served here, and this server "
            f"does not download "
            "models. Download it (`dragoman pull`), and start the server with it (`dragoman serve "
            "MODEL`)."
        )
    if not _may_control(http):
        raise PermissionDenied("Downloading a model needs an administrator's key.")
    return puller.pull(name)


async def _report_served(card: OllamaModelCard) -> AsyncGenerator[PullProgress]:
    for progress in list_served_progress(card):
        yield progress


def _build_card(slot: ModelSlot, name: str) -> OllamaModelCard:
    model = slot.model
    summary = slot.summary
    capabilities = None
    if summary is not None:
        has_native_reasoning = model is not None and model.capabilities.native_reasoning
        supported = {*summary.capabilities, *(("reasoning",) if has_native_reasoning else ())}
        capabilities = tuple(
            ollama_name for ours, ollama_name in _CAPABILITIES if ours in supported
        )
    embedding_length = None
    template = ""
    if model is not None:
        backend = model.backend
        if isinstance(backend, EmbedderBackend) or (
            isinstance(backend, TokenBackend) and backend.embedder is not None
        ):
            embedding_length = find_embedder(model)[0].embedding_info.dimensions
        if isinstance(backend, TokenBackend) and backend.renderer is not None:
            template = backend.renderer.template.source
    details = ModelDetails() if summary is None else summary.details
    return OllamaModelCard(
        name,
        slot.name,
        slot.created,
        size=details.size or (0 if slot.spec is None else slot.spec.memory),
        max_model_len=None if summary is None else summary.max_model_len,
        capabilities=capabilities,
        embedding_length=embedding_length,
        architecture=details.family or "",
        parameters=details.parameters,
        # For weights that are not quantized, Ollama shows their data type.
        quantization=details.quantization or (details.dtype or "").upper(),
        format=details.format or "",
        template=template,
        sampling=Sampling() if model is None else model.sampling,
    )
