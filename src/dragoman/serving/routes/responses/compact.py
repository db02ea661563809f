"""POST /v1/responses/compact: the model summarizes a conversation, through the normal generation path."""

from __future__ import annotations

from ....core.errors import Unsupported
from ....dialects.base import ReaderOptions
from ....dialects.responses import ResponsesCall, read_responses
from ...endpoint import HttpRequest, JsonResponse
from ...generate import admit_call, build_header, build_responder, read_call
from ...streaming import Responder
from .turn import prepend_history


async def compact(http: HttpRequest) -> JsonResponse | Responder:
    responses_call = await read_call(http, _read_compaction)
    if responses_call.background:
        raise Unsupported("Compaction is not supported in the background.", param="background")
    header = build_header(http, responses_call.call)
    responses_call, history, own_items = await prepend_history(http, responses_call, header.id)
    admitted = await admit_call(http, responses_call.call, header)
    writer = responses_call.create_compacted_writer(header, (*history.items, *own_items))
    return build_responder(http, writer, admitted, admitted.run.batches, stream=False)


def _read_compaction(body: bytes, options: ReaderOptions) -> ResponsesCall:
    return read_responses(body, options, compact=True)
