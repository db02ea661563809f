"""POST /v1/responses/compact: a conversation made shorter by the model itself, on the way that all answers take."""

from __future__ import annotations

from ...core.errors import Unsupported
from ...dialects.base import ReaderOptions
from ...dialects.responses import ResponsesCall, read_responses
from ..answer import Answer
from ..endpoint import Http, Whole
from ..generate import admit_call, answer, new_header, read_call
from .turn import continued


async def compact(http: Http) -> Whole | Answer:
    asked = await read_call(http, _read)
    if asked.background:
        raise Unsupported("Compaction is not supported in the background.", param="background")
    header = new_header(http, asked.call)
    asked, past, own = await continued(http, asked, header.id)
    admitted = await admit_call(http, asked.call, header)
    writer = asked.compacted(header, (*past.items, *own))
    return answer(http, writer, admitted, admitted.run.batches, stream=False)


def _read(body: bytes, options: ReaderOptions) -> ResponsesCall:
    return read_responses(body, options, compact=True)
