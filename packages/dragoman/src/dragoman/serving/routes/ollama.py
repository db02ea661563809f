"""Ollama's routes of generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from ...core.errors import RequestError, Unsupported
from ...core.request import Conversation
from ...dialects.field_errors import abbreviate
from ...dialects.interfaces import GenerationCall
from ...dialects.ollama import (
    AnswerClock,
    OllamaCall,
    read_ollama_chat,
    read_ollama_generate,
    render_load_status,
)
from ...dialects.ollama.errors import OLLAMA_ERRORS, OllamaError
from ...dialects.ollama.response_schemas import (
    OllamaChatResponse,
    OllamaGenerateResponse,
)
from ...dialects.ollama.wire import OLLAMA_CHAT_REQUEST, OLLAMA_GENERATE_REQUEST
from ...pipeline.admit import AdmittedRun
from ...pipeline.engine_backends import TokenBackend
from ...pipeline.model_lifecycle import ModelSlot
from ...pipeline.request_preparation import TokenJob
from ...pipeline.served_model import ServedModel
from ..api_description import LINES, response
from ..call_admission import admit_call, build_header
from ..client_warnings import collect_warnings
from ..generation_handler import build_responder
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup
from .ollama_body import NDJSON, read_ollama_call
from .ollama_keep_alive import apply_keep_alive, explain_keep_alive, unload
from .ollama_models import find_model_slot
from .ollama_timer import AnswerTimer

CallReader = Callable[..., OllamaCall]


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Ollama", OLLAMA_ERRORS)
    routes.add(
        "POST",
        "/api/chat",
        partial(_generate, read=read_ollama_chat, is_chat=True),
        "Answer a conversation",
        response(OllamaChatResponse),
        response(OllamaChatResponse, OllamaError, media=LINES),
        bodies=(OLLAMA_CHAT_REQUEST,),
        generates=True,
        description="Streams unless `stream` is false. Without messages it loads or unloads the "
        "model.",
        cost=RequestCost.CALL,
    )
    routes.add(
        "POST",
        "/api/generate",
        partial(_generate, read=read_ollama_generate, is_chat=False),
        "Continue a text",
        response(OllamaGenerateResponse),
        response(OllamaGenerateResponse, OllamaError, media=LINES),
        bodies=(OLLAMA_GENERATE_REQUEST,),
        generates=True,
        description="Streams unless `stream` is false. Without a prompt it loads or unloads the "
        "model.",
        cost=RequestCost.CALL,
    )
    return routes.build()


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
    admitted.run.batches.add_stage(timer.measure_run())
    admitted = replace(
        admitted, warnings=(*admitted.warnings, *_explain_context(ollama_call, admitted.run))
    )
    return build_responder(
        http,
        call.writer(admitted.header),
        admitted,
        stream=call.stream,
        content_type=NDJSON,
    )


def _explain_context(call: OllamaCall, run: AdmittedRun) -> Iterator[str]:
    """Yield a warning for a prompt that Ollama would have cut off."""
    n_tokens = max((len(job.prompt) for job in run.jobs if isinstance(job, TokenJob)), default=0)
    if call.num_ctx is not None and n_tokens > call.num_ctx:
        yield (
            f"options.num_ctx: the prompt has {n_tokens} tokens, more than {call.num_ctx}; "
            f"nothing was cut off"
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
    """Adapt the call to its model: the name and the warnings.

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
    prompt = request.prompt
    renders_tokens = isinstance(backend, TokenBackend)
    if isinstance(prompt, Conversation):
        can_think = model.formats.reasoning is not None or model.capabilities.native_reasoning
        if prompt.reasoning.enabled and not can_think:
            raise RequestError(f"{abbreviate(name)} does not support thinking", param="think")
        if prompt.preceding_ids and not renders_tokens:
            raise Unsupported(
                f"{abbreviate(name)} does not support context: its engine takes no tokens"
            )
    if request.suffix is not None and not model.supports_suffix:
        # Ollama's own words, which its clients look for.
        raise Unsupported(f"{abbreviate(name)} does not support insert", param="suffix")
    request = replace(request, model=name, return_prompt=request.return_prompt and renders_tokens)
    return replace(call, requests=(request,), warnings=tuple(warnings))
