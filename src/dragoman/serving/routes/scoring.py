"""Rerank and score."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.scoring import read_rerank, read_score, render_rerank, render_scores, render_tei_rerank
from ...pipeline.scoring import score_pairs
from ..auth import Access
from ..endpoint import HttpRequest, JsonResponse, Route
from ..envelopes import OPENAI
from ..generate import find_queue_share, read_call
from ..streaming import Responder
from .embeddings import build_header, find_model, render_in_thread_if_large, run_computation


def build_routes() -> Sequence[Route]:
    rerank_paths, score_paths = ("/rerank", "/v1/rerank", "/v2/rerank"), ("/score", "/v1/score")
    return (
        *(Route(path, Access.USER, OPENAI, {"POST": rerank}) for path in rerank_paths),
        *(Route(path, Access.USER, OPENAI, {"POST": score_texts}) for path in score_paths),
    )


async def rerank(http: HttpRequest) -> JsonResponse | Responder:
    call = await read_call(http, read_rerank)
    model, warnings = await find_model(http, call)
    with model.keep_loaded():
        result = await run_computation(http, model, score_pairs(model, call.texts, queue_share=find_queue_share(http)))
    documents = call.texts.documents if call.return_documents else None
    header = build_header(http, "rerank-", model)

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
        result = await run_computation(http, model, score_pairs(model, call.texts, queue_share=find_queue_share(http)))
    profile = http.service.options.profile
    return JsonResponse(render_scores(result, build_header(http, "score-", model), profile), warnings=warnings)
