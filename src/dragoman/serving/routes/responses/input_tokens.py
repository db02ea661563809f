"""POST /v1/responses/input_tokens: `usage.input_tokens` of the same call, without generation."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.request import Conversation
from ....dialects.base import GenerationCall
from ....dialects.responses import read_responses, render_input_tokens
from ....pipeline.admission import check_countable
from ....pipeline.models import TokenBackend
from ....pipeline.truncation import build_dropped_warning, build_fitting_prompt
from ...auth import Access
from ...context import build_owner_files
from ...endpoint import HttpRequest, JsonResponse, Route
from ...envelopes import RESPONSES
from ...generate import build_terms, collect_warnings, count_with_engine, read_call
from ...streaming import Responder
from .turn import prepend_history


def build_routes() -> Sequence[Route]:
    return (Route("/v1/responses/input_tokens", Access.USER, RESPONSES, {"POST": count_input_tokens}),)


async def read_call_with_history(http: HttpRequest) -> GenerationCall:
    """Return the call with its history; nothing is stored.

    Raises:
        RequestError: the request is invalid.
    """
    responses_call, _, _ = await prepend_history(http, await read_call(http, read_responses), http.id)
    return responses_call.call


async def count_input_tokens(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call_with_history(http)
    warnings = collect_warnings(call, strict=http.service.options.strict)
    request = call.requests[0]
    model = await http.service.models.load_and_find(request.model)
    tokenizer = model.tokenizer
    if isinstance(request.prompt, Conversation) and tokenizer is not None:
        check_countable(request.prompt, model.max_model_len, tokenizer.longest_token)
    request = await http.service.generation.media.resolve_request(build_owner_files(http), model, request)
    if not isinstance(model.backend, TokenBackend):
        return JsonResponse(render_input_tokens(await count_with_engine(model, request)), warnings=warnings)
    prompted = await build_fitting_prompt(model.backend, request, build_terms(http, http.id), model.max_model_len)
    dropped = [build_dropped_warning(prompted.n_dropped, model.max_model_len)] if prompted.n_dropped else []
    return JsonResponse(render_input_tokens(len(prompted.ids)), warnings=(*warnings, *dropped))
