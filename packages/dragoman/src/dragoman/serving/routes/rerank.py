"""Routes that rerank documents or score pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...core.encoder_requests import RelevanceScores, TextPairs
from ...dialects.openai_errors import OPENAI_ERRORS
from ...dialects.scoring import (
    RERANK_REQUEST,
    SCORE_REQUEST,
    RerankResponse,
    ScoreResponse,
    TeiRerankResult,
    read_rerank,
    read_score,
    render_rerank,
    render_scores,
    render_tei_rerank,
)
from ...pipeline.scoring import score_pairs
from ...pipeline.served_model import ServedModel
from ..api_description import response
from ..call_reading import read_call
from ..encoding_call import (
    build_result_header,
    find_model,
    render_in_thread_if_large,
    run_computation,
)
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..request_terms import find_queue_share
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup


def build_routes() -> Sequence[Route]:
    rerank_paths = ("/rerank", "/v1/rerank", "/v2/rerank")
    score_paths = ("/score", "/v1/score")
    routes = RouteGroup("Embeddings", OPENAI_ERRORS)
    for path in rerank_paths:
        routes.add(
            "POST",
            path,
            rerank,
            "Order documents by their relevance to a query",
            response(RerankResponse, list[TeiRerankResult]),
            bodies=(RERANK_REQUEST,),
            cost=RequestCost.CALL,
        )
    for path in score_paths:
        routes.add(
            "POST",
            path,
            score_texts,
            "Score pairs of texts",
            response(ScoreResponse),
            bodies=(SCORE_REQUEST,),
            cost=RequestCost.CALL,
        )
    return routes.build()


async def _score(http: HttpRequest, model: ServedModel, texts: TextPairs) -> RelevanceScores:
    share = find_queue_share(http)
    return await run_computation(
        http,
        model,
        share,
        lambda trace: score_pairs(model, replace(texts, trace=trace), queue_share=share),
    )


async def rerank(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_rerank)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        result = await _score(http, model, call.texts)
    documents = call.texts.documents if call.return_documents else None
    header = build_result_header(http, "rerank-", model)

    def write() -> bytes:
        if call.is_tei:
            return render_tei_rerank(result, documents, call.top_n)
        return render_rerank(result, header, documents, call.top_n)

    characters = 0 if documents is None else sum(map(len, documents))
    return JsonResponse(await render_in_thread_if_large(write, characters // 16), warnings=warnings)


async def score_texts(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_score)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        result = await _score(http, model, call.texts)
    profile = http.service.options.profile
    return JsonResponse(
        render_scores(result, build_result_header(http, "score-", model), profile),
        warnings=warnings,
    )
