"""POST /v1/responses/compact: the model summarizes a conversation, through the normal generation path."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ....core.errors import Unsupported
from ....dialects.responses import read_responses
from ...auth import Access
from ...endpoint import HttpRequest, JsonResponse, Route
from ...envelopes import RESPONSES
from ...generate import admit_call, build_header, build_responder, read_call
from ...streaming import Responder
from .turn import prepend_history


def build_routes() -> Sequence[Route]:
    return (Route("/v1/responses/compact", Access.USER, RESPONSES, {"POST": compact}),)


async def compact(http: HttpRequest) -> JsonResponse | Responder:
    responses_call = await read_call(http, partial(read_responses, compact=True))
    if responses_call.background:
        raise Unsupported("Compaction is not supported in the background.", param="background")
    header = build_header(http, responses_call.call)
    responses_call, history, own_items = await prepend_history(http, responses_call, header.id)
    admitted = await admit_call(http, responses_call.call, header)
    writer = responses_call.create_compacted_writer(header, (*history.items, *own_items))
    return build_responder(http, writer, admitted, admitted.run.batches, stream=False)
