"""POST /v1/responses/compact: a conversation made shorter by the model itself, on the way that all answers take."""

from __future__ import annotations

from ..core.errors import Unsupported
from ..dialects.base import ReaderOptions
from ..dialects.responses import ResponsesCall, read_responses, rows, stateless
from .answer import Answer
from .endpoint import Http, Whole
from .generate import admit_call, answer, new_header, read_call


async def compact(http: Http) -> Whole | Answer:
    asked = await read_call(http, _read)
    if asked.background:
        raise Unsupported("A compaction is not made in the background.", param="background")
    call = stateless(asked)
    header = new_header(http, call)
    admitted = await admit_call(http, call, header)
    writer = asked.compacted(header, [row for _, row in rows(asked.input, header.id)])
    return answer(http, writer, admitted, admitted.run.batches, stream=False)


def _read(body: bytes, options: ReaderOptions) -> ResponsesCall:
    return read_responses(body, options, compact=True)
