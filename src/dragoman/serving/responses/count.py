"""POST /v1/responses/input_tokens: what `usage.input_tokens` of the same call would be."""

from __future__ import annotations

from ...core.errors import Unsupported
from ...core.request import Conversation
from ...dialects.base import Call
from ...dialects.responses import input_tokens_answer, read_responses
from ...pipeline.admission import check_countable
from ...pipeline.fitting import dropped_warning, prompt_that_fits
from ...pipeline.models import TokenBackend
from ..answer import Answer
from ..endpoint import Http, Whole
from ..generate import read_call, refuse_unknown, terms
from ..party import files_of
from .turn import continued


async def read_continued(http: Http) -> Call:
    """The call with all that comes before it; nothing is kept of it. Raises RequestError."""
    asked, _, _ = await continued(http, await read_call(http, read_responses), http.id)
    return asked.call


async def count_input_tokens(http: Http) -> Whole | Answer:
    call = await read_continued(http)
    refuse_unknown(call.unknown, strict=http.service.options.strict)
    request = call.requests[0]
    model = await http.service.models.ready(request.model)
    if not isinstance(model.backend, TokenBackend):
        raise Unsupported("This model's engine does not support counting tokens.", param="model")
    if isinstance(request.prompt, Conversation):
        check_countable(request.prompt, model.max_model_len, model.backend.tokenizer.longest_token)
    request = await http.service.media.gathered(files_of(http), model, request)
    prompted = await prompt_that_fits(model.backend, request, terms(http, http.id), model.max_model_len)
    dropped = [dropped_warning(prompted.dropped, model.max_model_len)] if prompted.dropped else []
    return Whole(input_tokens_answer(len(prompted.ids)), warnings=(*call.warnings, *dropped))
