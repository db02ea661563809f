"""Routes of Text Generation Inference (TGI), whose `/generate` is also SGLang's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from ..._version import VERSION
from ...core.errors import DragomanError
from ...dialects.interfaces import GenerationCall
from ...dialects.openai_errors import OPENAI_ERRORS, OpenAIErrorBody
from ...dialects.sglang.reader import read_sglang
from ...dialects.sglang.wire import SGLANG_REQUEST
from ...dialects.sglang.writer import SglangResponse
from ...dialects.tgi import is_tgi_body, read_tgi, render_tgi_info
from ...dialects.tgi.errors import TGI_ERRORS, TgiError
from ...dialects.tgi.wire import TGI_REQUEST, TgiInfo
from ...dialects.tgi.writer import TgiResponse, TgiStreamEvent
from ..api_description import EVENTS, MODEL, TEXT, ApiResponse, response
from ..call_reading import parse_body, run_in_thread_if_large
from ..generation_handler import build_generation_handler, run_generation
from ..handler_result import EnvelopedError, HandlerResult, JsonResponse, call_handler
from ..http_request import HttpRequest
from ..queried_model import find_queried_model
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup
from .ui import redirect_to_page

INDEX_TEXT = f"""\
Dragoman {VERSION}, an inference API server.

OpenAI's clients      base_url = this address, followed by /v1
Anthropic's clients   base_url = this address
Ollama's clients      OLLAMA_HOST = this address
models                GET /v1/models
health                GET /health
API reference         GET /docs
"""
"""The index page, which browsers see too if the page at /ui is disabled."""
OLLAMA_GREETING = "Ollama is running"
"""The index page for Ollama's clients, which expect this text. Their User-Agent begins
with `ollama`.
"""


def build_routes(*, redirects_browsers: bool) -> Sequence[Route]:
    """Build the routes. Errors have OpenAI's format for SGLang's bodies, and TGI's for
    TGI's, see `generate`.

    redirects_browsers: redirect browsers from `/` to the page at /ui.
    """
    browser_handler = redirect_to_page if redirects_browsers else None
    post_root = build_generation_handler(partial(read_tgi, as_list=True))
    post_stream = build_generation_handler(partial(read_tgi, always_stream=True))
    routes = RouteGroup("SGLang and TGI", TGI_ERRORS)
    routes.add(
        ("POST", "PUT"),
        "/generate",
        generate,
        "Generate text in the format of SGLang or TGI; the body decides",
        response(SglangResponse, list[SglangResponse], TgiResponse),
        response(SglangResponse, TgiStreamEvent, OpenAIErrorBody, TgiError, media=EVENTS),
        bodies=(SGLANG_REQUEST, TGI_REQUEST),
        generates=True,
        envelopes=(OPENAI_ERRORS, TGI_ERRORS),
        envelope=OPENAI_ERRORS,
        cost=RequestCost.CALL,
    )
    routes.add(
        "GET",
        "/",
        show_index,
        "Identify the server",
        ApiResponse(media=TEXT),
        ApiResponse(
            media=None,
            status=307,
            description="Browsers are redirected to the web UI at `/ui`.",
        ),
        browser_handler=browser_handler,
    )
    routes.add(
        "POST",
        "/",
        post_root,
        "Generate text in the format of TGI",
        response(list[TgiResponse]),
        response(TgiStreamEvent, TgiError, media=EVENTS),
        bodies=(TGI_REQUEST,),
        generates=True,
        cost=RequestCost.CALL,
    )
    routes.add(
        "POST",
        "/generate_stream",
        post_stream,
        "Stream text in the format of TGI",
        response(TgiStreamEvent, TgiError, media=EVENTS),
        bodies=(TGI_REQUEST,),
        generates=True,
        cost=RequestCost.CALL,
    )
    routes.add(
        "GET", "/info", show_info, "Show the model, as in TGI", response(TgiInfo), query=(MODEL,)
    )
    return routes.build()


async def generate(http: HttpRequest) -> HandlerResult:
    """Generate. TGI and SGLang share this path; the body determines the dialect and
    the format of errors.
    """
    body = await http.read_json()
    if not await run_in_thread_if_large(is_tgi_body, body):
        return await run_generation(http, await parse_body(http, body, read_sglang))
    # The request renders the errors of a stream and of its start.
    tgi_request = replace(http, envelope=TGI_ERRORS)

    async def handle() -> Responder:
        return await run_generation(tgi_request, await parse_body(tgi_request, body, read_tgi))

    result = await call_handler(handle())
    return EnvelopedError(result, TGI_ERRORS) if isinstance(result, DragomanError) else result


async def read_generate_call(http: HttpRequest) -> GenerationCall:
    """Read a call in the dialect that its body determines.

    Raises:
        RequestError: the body is invalid.
    """
    body = await http.read_json()
    return await parse_body(
        http, body, read_tgi if await run_in_thread_if_large(is_tgi_body, body) else read_sglang
    )


async def show_index(http: HttpRequest) -> JsonResponse | Responder:
    is_ollama_client = http.headers.get("user-agent", "").lower().startswith("ollama")
    text = OLLAMA_GREETING if is_ollama_client else INDEX_TEXT
    return JsonResponse(text.encode(), content_type=(b"content-type", b"text/plain; charset=utf-8"))


async def show_info(http: HttpRequest) -> JsonResponse | Responder:
    model = await find_queried_model(http)
    return JsonResponse(
        render_tgi_info(
            model.name,
            model.max_model_len,
            http.service.generation.reader_options.max_stop,
            VERSION,
        )
    )
