"""TGI's and LightLLM's routes, except for /generate, and the index page at TGI's path."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ... import __version__
from ...dialects.tgi import read_tgi, render_tgi_info
from ..auth import Access
from ..endpoint import HttpRequest, JsonResponse, Route
from ..envelopes import TGI
from ..generate import build_generation_handler, find_queried_model
from ..streaming import Responder
from .ui import redirect_to_page

INDEX_TEXT = f"""\
Dragoman {__version__}, an inference API server.

OpenAI's clients      base_url = this address, followed by /v1
Anthropic's clients   base_url = this address
Ollama's clients      OLLAMA_HOST = this address
its models            GET /v1/models
its state             GET /health
"""
"""The index page, for browsers too where the page at /ui is disabled."""


def build_routes(*, redirects_browsers: bool) -> Sequence[Route]:
    """redirects_browsers: to the page at /ui."""
    user, browser_handler = Access.USER, redirect_to_page if redirects_browsers else None
    post_root = build_generation_handler(partial(read_tgi, as_list=True))
    return (
        Route("/", user, TGI, {"GET": show_index, "POST": post_root}, browser_handler),
        Route(
            "/generate_stream",
            user,
            TGI,
            {"POST": build_generation_handler(partial(read_tgi, always_stream=True))},
        ),
        Route("/info", user, TGI, {"GET": show_info}),
    )


OLLAMA_GREETING = "Ollama is running"
"""What Ollama answers on `/`. Its clients, which all name themselves `ollama...`, look for it."""


async def show_index(http: HttpRequest) -> JsonResponse | Responder:
    is_ollama_client = http.headers.get("user-agent", "").lower().startswith("ollama")
    text = OLLAMA_GREETING if is_ollama_client else INDEX_TEXT
    return JsonResponse(text.encode(), content_type=(b"content-type", b"text/plain; charset=utf-8"))


async def show_info(http: HttpRequest) -> JsonResponse | Responder:
    model = await find_queried_model(http)
    return JsonResponse(
        render_tgi_info(model.name, model.max_model_len, http.service.generation.reader_options.max_stop, __version__)
    )
