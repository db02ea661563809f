"""TGI's and LightLLM's routes. /generate is shared with SGLang: `sglang.generate` determines the dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ... import __version__
from ...core.errors import DragomanError
from ...dialects.tgi import map_tgi_status, read_tgi, render_tgi_error, render_tgi_info
from ..auth import Access
from ..endpoint import EnvelopedError, ErrorEnvelope, Handler, HandlerResult, HttpRequest, JsonResponse, call_handler
from ..generate import build_generation_handler, parse_body, run_generation
from ..streaming import Responder

ENVELOPE = ErrorEnvelope(lambda error, _: render_tgi_error(error), map_tgi_status)
TGI_ONLY_PATHS = frozenset({"/", "/generate_stream", "/info"})
"""Paths of TGI only, so that all their errors use TGI's format."""


def build_routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    user = Access.USER
    return {
        "/": (user, {"POST": build_generation_handler(partial(read_tgi, as_list=True))}),
        "/generate_stream": (user, {"POST": build_generation_handler(partial(read_tgi, always_stream=True))}),
        "/info": (user, {"GET": show_info}),
    }


async def generate(http: HttpRequest, body: bytes) -> HandlerResult:
    """Generate on a shared path, with TGI's error format."""
    tgi_request = replace(http, envelope=ENVELOPE)

    async def handle() -> Responder:
        return await run_generation(tgi_request, await parse_body(tgi_request, body, read_tgi))

    result = await call_handler(handle())
    return EnvelopedError(result, ENVELOPE) if isinstance(result, DragomanError) else result


async def show_info(http: HttpRequest) -> JsonResponse | Responder:
    models = http.service.models
    model = await models.load_and_find(http.query.get("model") or models.slots[0].name)
    return JsonResponse(
        render_tgi_info(model.name, model.max_model_len, http.service.reader_options.max_stop, __version__)
    )
