"""OpenAI's legacy completions."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.completions.reader import read_completions
from ...dialects.completions.response_schemas import TextCompletion, TextCompletionChunk
from ...dialects.completions.wire import COMPLETION_REQUEST
from ...dialects.openai_errors import OPENAI_ERRORS, OpenAIErrorBody
from ..api_description import EVENTS, response
from ..generation_handler import build_generation_handler
from ..route import RequestCost, Route, RouteGroup


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Completions", OPENAI_ERRORS)
    routes.add(
        "POST",
        "/v1/completions",
        build_generation_handler(read_completions),
        "Continue a text",
        response(TextCompletion),
        response(TextCompletionChunk, OpenAIErrorBody, media=EVENTS),
        bodies=(COMPLETION_REQUEST,),
        generates=True,
        cost=RequestCost.CALL,
    )
    return routes.build()
