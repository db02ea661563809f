"""Routes that render or explain prompts without calling the engine. Each caller sees
only its own requests' data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ...core.errors import NotFound, Unsupported
from ...dialects.anthropic.errors import ANTHROPIC_ERRORS
from ...dialects.anthropic.wire import MESSAGES_REQUEST
from ...dialects.chat import read_chat
from ...dialects.chat.wire import CHAT_REQUEST
from ...dialects.completions.reader import read_completions
from ...dialects.completions.wire import COMPLETION_REQUEST
from ...dialects.error_envelope import ErrorEnvelope
from ...dialects.interfaces import GenerationCall, ReaderOptions
from ...dialects.json_body import JsonBody
from ...dialects.openai_errors import OPENAI_ERRORS
from ...dialects.prompt_explanation import (
    ExplanationBody,
    PromptDifference,
    PromptExplanation,
    render_explanation,
)
from ...dialects.responses.errors import RESPONSES_ERRORS
from ...dialects.responses.wire import RESPONSE_REQUEST
from ...dialects.sglang.wire import SGLANG_REQUEST
from ...dialects.tgi.wire import TGI_REQUEST
from ...dialects.vllm_generate.body_renderer import RenderedGenerateBody, render_generate_body
from ...dialects.vllm_generate.reader import read_generate
from ...dialects.vllm_generate.wire import GENERATE_REQUEST
from ...pipeline.recent_prompts import RecentPrompts, count_common_prefix
from ...pipeline.request_preparation import TokenJob
from ...pipeline.served_model import ServedModel
from ..api_description import response
from ..call_admission import AdmittedCall, build_header, prepare_call
from ..call_reading import read_call
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..responder import Responder
from ..route import Handler, Route, RouteGroup
from .messages import read_conversation
from .responses.create import read_call_with_history
from .tgi import read_generate_call

HttpCallReader = Callable[[HttpRequest], Awaitable[GenerationCall]]
"""A function that reads the call of a request, including its history."""

CONTEXT_TOKENS = 16
"""Tokens of each prompt that are shown at the first difference."""


def build_render_handler(read: HttpCallReader, *, as_list: bool = False) -> Handler:
    """Build the handler of one of vLLM's `render` routes, which return bodies for
    /inference/v1/generate.

    as_list: return a list with one body per prompt.
    """

    async def handle(http: HttpRequest) -> JsonResponse | Responder:
        _require_enabled(http)
        call, admitted, _, jobs = await _prepare(http, read)
        if any(job.requests[0].images for job in jobs):
            raise Unsupported(
                "A prompt with images cannot be returned as token ids.", param="messages"
            )
        request_jobs = zip(call.requests, jobs, strict=True)
        bodies: list[bytes] = [
            render_generate_body(admitted.header.id, request, job.requests[0])
            for request, job in request_jobs
        ]
        warnings = admitted.warnings
        if any(job.requests[0].matcher is not None for job in jobs):
            warnings = (*warnings, "the grammar of the answer is omitted: it cannot be serialized")
        return JsonResponse(
            b"[" + b",".join(bodies) + b"]" if as_list else bodies[0], warnings=warnings
        )

    return handle


def build_explain_handler(read: HttpCallReader, recent_prompts: RecentPrompts | None) -> Handler:
    """Build the handler of an `explain` route.

    Its response has the prompt's text and tokens, its cached length, and its first
    difference from the most similar of the caller's recent prompts.

    recent_prompts: None disables the comparison.
    """

    async def handle(http: HttpRequest) -> JsonResponse | Responder:
        _require_enabled(http)
        _, admitted, model, (job, *other_jobs) = await _prepare(http, read)
        if other_jobs:
            raise Unsupported("One prompt can be explained at a time.", param="prompt")
        request = job.requests[0]
        cache = model.interfaces.cache
        explanation = PromptExplanation(
            model.name,
            job.prompt_text,
            job.prompt,
            tuple(job.vocabulary.build_token(id, None).text for id in job.prompt),
            request.max_tokens,
            # The cache's keys also depend on images, which a lookup by token ids does
            # not include.
            None
            if cache is None or request.images
            else cache.count_cached_tokens(job.prompt, request.cache_salt),
            None if recent_prompts is None else _find_difference(http, recent_prompts, model, job),
            admitted.warnings,
        )
        return JsonResponse(render_explanation(explanation), warnings=admitted.warnings)

    return handle


def build_routes(recent_prompts: RecentPrompts | None) -> Sequence[Route]:
    """Build an `explain` route below each generation route, and vLLM's `render` routes.

    recent_prompts: None unless `explain` is enabled.
    """
    chat = _build_reader(read_chat)
    completions = _build_reader(read_completions)
    explained: tuple[tuple[str, ErrorEnvelope, HttpCallReader, str, tuple[JsonBody, ...]], ...] = (
        ("/v1/chat/completions", OPENAI_ERRORS, chat, "Chat Completions", (CHAT_REQUEST,)),
        ("/v1/completions", OPENAI_ERRORS, completions, "Completions", (COMPLETION_REQUEST,)),
        (
            "/v1/responses",
            RESPONSES_ERRORS,
            read_call_with_history,
            "Responses",
            (RESPONSE_REQUEST,),
        ),
        ("/v1/messages", ANTHROPIC_ERRORS, _read_messages_call, "Messages", (MESSAGES_REQUEST,)),
        (
            "/inference/v1/generate",
            OPENAI_ERRORS,
            _build_reader(read_generate),
            "Tokens",
            (GENERATE_REQUEST,),
        ),
        (
            "/generate",
            OPENAI_ERRORS,
            read_generate_call,
            "SGLang and TGI",
            (SGLANG_REQUEST, TGI_REQUEST),
        ),
    )
    render_all = build_render_handler(completions, as_list=True)
    routes = RouteGroup("Chat Completions", OPENAI_ERRORS)
    for path, envelope, read, tag, bodies in explained:
        routes.add(
            "POST",
            f"{path}/explain",
            build_explain_handler(read, recent_prompts),
            "Show how the prompt is rendered and cached (--explain)",
            response(ExplanationBody),
            bodies=bodies,
            tag=tag,
            envelope=envelope,
        )
    routes.add(
        "POST",
        "/v1/chat/completions/render",
        build_render_handler(chat),
        "Render a conversation to a body for /inference/v1/generate (--explain)",
        response(RenderedGenerateBody),
        bodies=(CHAT_REQUEST,),
    )
    routes.add(
        "POST",
        "/v1/completions/render",
        render_all,
        "Render prompts to bodies for /inference/v1/generate (--explain)",
        response(list[RenderedGenerateBody]),
        bodies=(COMPLETION_REQUEST,),
        tag="Completions",
    )
    return routes.build()


def _build_reader(read: Callable[[bytes, ReaderOptions], GenerationCall]) -> HttpCallReader:
    """Build a reader for a dialect without server-side history."""
    return lambda http: read_call(http, read)


async def _read_messages_call(http: HttpRequest) -> GenerationCall:
    call, _ = await read_conversation(http, await http.read_json())
    return call


def _require_enabled(http: HttpRequest) -> None:
    # The web page (--ui) explains prompts too, without a comparison with recent ones.
    if not (http.service.options.explain or http.service.options.ui):
        raise NotFound(
            "Explaining prompts is disabled on this server (--explain).",
            code="unsupported_endpoint",
        )


async def _prepare(
    http: HttpRequest, read: HttpCallReader
) -> tuple[GenerationCall, AdmittedCall, ServedModel, tuple[TokenJob, ...]]:
    """Prepare a call up to the point where the engine would be called.

    Raises:
        RequestError: the request is invalid.
    """
    call = await read(http)
    header = build_header(http, call)
    admitted = await prepare_call(http, call, header)
    # Closed before the first event, so nothing is generated.
    await admitted.run.batches.aclose()
    jobs = tuple(job for job in admitted.run.jobs if isinstance(job, TokenJob))
    if len(jobs) != len(admitted.run.jobs):
        raise Unsupported("This model's engine builds its own prompts.", param="model")
    return call, admitted, http.service.models.find_loaded(header.model), jobs


def _find_difference(
    http: HttpRequest, recent: RecentPrompts, model: ServedModel, job: TokenJob
) -> PromptDifference | None:
    earlier = recent.find_closest(http.caller.owner, model.name, job.prompt)
    tokenizer = model.tokenizer
    if earlier is None or tokenizer is None:
        return None
    common_length = count_common_prefix(earlier, job.prompt)
    # The earlier prompt is a prefix of this prompt, so there is no difference to show.
    if common_length == len(earlier):
        return PromptDifference(len(earlier), common_length, None)
    return PromptDifference(
        len(earlier),
        common_length,
        common_length,
        tokenizer.decode(job.prompt[max(0, common_length - CONTEXT_TOKENS) : common_length]),
        tokenizer.decode(earlier[common_length : common_length + CONTEXT_TOKENS]),
        tokenizer.decode(job.prompt[common_length : common_length + CONTEXT_TOKENS]),
    )
