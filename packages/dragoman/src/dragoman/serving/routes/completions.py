"""OpenAI's legacy completions."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.completions.reader import read_completions
from ...dialects.completions.response_schemas import TextCompletion, TextCompletionChunk
from ...dialects.completions.wire import COMPLETION_REQUEST
from ...dialects.openai_errors import OpenAIErrorBody
from ..api_description import EVENTS, response
from ..auth import Access
from ..error_envelope import OPENAI
from ..generation_handler import build_generation_handler
from ..route import Operation, Route


def build_routes() -> Sequence[Route]:
    return (
        Route(
            "/v1/completions",
            Access.USER,
            OPENAI,
            {
                "POST": Operation(
                    build_generation_handler(read_completions),
                    "Completions",
                    "Continue a text",
                    (
                        response(TextCompletion),
                        response(TextCompletionChunk, OpenAIErrorBody, media=EVENTS),
                    ),
                    (COMPLETION_REQUEST,),
                    generates=True,
                )
            },
        ),
    )
