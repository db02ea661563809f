"""Ollama's /api/chat, /api/generate, /api/embed and /api/embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import anyio.to_thread
from msgspec.structs import replace

from ...core.embeddings import Embeddings
from ...core.errors import RequestError, Unsupported
from ...core.metrics import EngineStats
from ...core.request import Conversation, GenerateRequest
from ...dialects.base import GenerationCall, ReaderOptions
from ...dialects.body import abbreviate
from ...dialects.ollama import (
    AnswerClock,
    OllamaCall,
    OllamaEmbedCall,
    OllamaTimings,
    read_embed,
    read_embeddings,
    read_ollama_chat,
    read_ollama_generate,
    render_embed,
    render_embeddings,
    render_load_status,
)
from ...pipeline.embedding import embed
from ...pipeline.metrics import RequestMetrics, measure
from ...pipeline.models import Models, ModelSlot, ServedModel, TokenBackend
from ...pipeline.run import AdmittedRun
from ...prompts.infill import build_infill_prompt
from ..auth import Access
from ..disconnect import cancel_on_disconnect
from ..endpoint import Handler, HttpRequest, JsonResponse, Route
from ..envelopes import OLLAMA
from ..generate import admit_call, build_header, build_responder, collect_warnings
from ..streaming import EventBatches, Responder
from .ollama_models import NDJSON, apply_keep_alive, explain_keep_alive, find_model_slot, read_ollama_call, unload

CallReader = Callable[..., OllamaCall]


def build_routes() -> Sequence[Route]:
    handlers: Mapping[str, Handler] = {
        "/api/chat": partial(_generate, read=read_ollama_chat, is_chat=True),
        "/api/generate": partial(_generate, read=read_ollama_generate, is_chat=False),
        "/api/embed": create_embeddings,
        "/api/embeddings": create_embedding,
    }
    return tuple(Route(path, Access.USER, OLLAMA, {"POST": handler}) for path, handler in handlers.items())


class AnswerTimer:
    """The durations of an answer: those of the engine from the pipeline's own meter, and the load of the model.

    monotonic: seconds. arrived_at: of the request.
    """

    def __init__(self, monotonic: Callable[[], float], arrived_at: float) -> None:
        self._monotonic, self._arrived_at, self._load_seconds = monotonic, arrived_at, 0.0
        self._metrics: RequestMetrics | None = None

    async def load_model(self, models: Models, name: str) -> ServedModel:
        """As `Models.load_and_find`."""
        began_at = self._monotonic()
        model = await models.load_and_find(name)
        self._load_seconds = self._monotonic() - began_at
        return model

    def measure_run(self, run: AdmittedRun) -> EventBatches:
        """The batches of the run, measured."""
        # The counters of the metrics route are kept by the pipeline; an engine may keep its own instead.
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


async def _generate(http: HttpRequest, *, read: CallReader, is_chat: bool) -> JsonResponse | Responder:
    service = http.service
    timer = AnswerTimer(service.clock.monotonic, http.started_at)
    ollama_call = await read_ollama_call(http, partial(read, clock=AnswerClock(service.clock.now, timer.measure)))
    slot, name = find_model_slot(service.models, ollama_call.model)
    # Ollama's way to unload a model, which must not be loaded for that.
    if not ollama_call.has_prompt and ollama_call.keep_alive == 0:
        await unload(http, slot)
        return _render_status(http, ollama_call, "unload", is_chat=is_chat)
    model = await timer.load_model(service.models, name)
    call = _adapt_call(http, ollama_call, slot, model, name)
    # Ollama's way to load a model ahead of the first prompt.
    if not ollama_call.has_prompt:
        apply_keep_alive(http, slot, ollama_call.keep_alive)
        return _render_status(http, replace(ollama_call, call=call), "load", is_chat=is_chat)
    admitted = await admit_call(http, call, build_header(http, call))
    # The admitted run keeps the model loaded until it ends.
    apply_keep_alive(http, slot, ollama_call.keep_alive)
    admitted = replace(admitted, run=replace(admitted.run, batches=timer.measure_run(admitted.run)))
    return build_responder(
        http, call.writer(admitted.header), admitted, admitted.run.batches, stream=call.stream, content_type=NDJSON
    )


def _render_status(http: HttpRequest, call: OllamaCall, reason: str, *, is_chat: bool) -> JsonResponse:
    warnings = collect_warnings(call.call, strict=http.service.options.strict)
    return JsonResponse(
        render_load_status(call.model, http.service.clock.now(), reason, is_chat=is_chat), warnings=warnings
    )


def _adapt_call(
    http: HttpRequest, ollama_call: OllamaCall, slot: ModelSlot, model: ServedModel, name: str
) -> GenerationCall:
    """Adapt the call to its model: the name, the warnings, and the prompt of a fill-in-the-middle request.

    Raises:
        RequestError: the model does not support the call.
    """
    call, warnings = ollama_call.call, list(ollama_call.call.warnings)
    if ollama_call.num_ctx is not None and ollama_call.num_ctx > model.max_model_len:
        warnings.append(f"options.num_ctx: the context of this model is {model.max_model_len} tokens")
    warnings += explain_keep_alive(http, slot, ollama_call.keep_alive)
    request = _adapt_request(call.requests[0], model, name, ollama_call.suffix)
    return replace(call, requests=(request,), warnings=tuple(warnings))


def _adapt_request(request: GenerateRequest, model: ServedModel, name: str, suffix: str | None) -> GenerateRequest:
    prompt, backend = request.prompt, model.backend
    renders_tokens = isinstance(backend, TokenBackend)
    if isinstance(prompt, Conversation):
        can_think = model.reasoning is not None or model.capabilities.native_reasoning
        if prompt.reasoning.enabled and not can_think:
            raise RequestError(f"{abbreviate(name)} does not support thinking", param="think")
        if prompt.preceding_ids and not renders_tokens:
            raise Unsupported(f"{abbreviate(name)} does not support context: its engine takes no tokens")
    if suffix is not None:
        tokens = model.infill_tokens
        if tokens is None or not isinstance(backend, TokenBackend) or not isinstance(prompt, str):
            raise Unsupported(f"{abbreviate(name)} does not support insert", param="suffix")
        infill = build_infill_prompt(backend.tokenizer, tokens, prompt, suffix)
        limits = replace(request.limits, stop_token_ids=infill.stop_ids)
        request = replace(request, prompt=infill.ids, limits=limits)
    return replace(request, model=name, return_prompt=request.return_prompt and renders_tokens)


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
    """Return the call, the warnings, and the result: None where there is no input, so that the model is only loaded."""
    call = await read_ollama_call(http, read)
    slot, name = find_model_slot(http.service.models, call.model)
    call_with_warnings = replace(call, warnings=(*call.warnings, *explain_keep_alive(http, slot, call.keep_alive)))
    warnings = collect_warnings(call_with_warnings, strict=http.service.options.strict)
    model = await timer.load_model(http.service.models, name)
    with model.keep_loaded():
        apply_keep_alive(http, slot, call.keep_alive)
        # Ollama's clients load a model by a request without input.
        if not call.texts.inputs:
            return call, warnings, None
        work = embed(model, call.texts, call.dimensions, call.normalize)
        return call, warnings, await cancel_on_disconnect(http.on_disconnect, work)
