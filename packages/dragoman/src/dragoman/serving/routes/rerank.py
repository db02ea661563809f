"""Routes that rerank documents or score pairs of texts."""

from __future__ import annotations

from ...dialects.scoring import (
    read_rerank,
    read_score,
    render_rerank,
    render_scores,
    render_tei_rerank,
)
from ...pipeline.scoring import score_pairs
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


async def rerank(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_rerank)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        result = await run_computation(
            http, model, score_pairs(model, call.texts, queue_share=find_queue_share(http))
        )
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
        result = await run_computation(
            http, model, score_pairs(model, call.texts, queue_share=find_queue_share(http))
        )
    profile = http.service.options.profile
    return JsonResponse(
        render_scores(result, build_result_header(http, "score-", model), profile),
        warnings=warnings,
    )
