"""OpenAI's legacy completions."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.completions.reader import read_completions
from ..auth import Access
from ..error_envelope import OPENAI
from ..generation_handler import build_generation_handler
from ..route import Route


def build_routes() -> Sequence[Route]:
    return (
        Route(
            "/v1/completions",
            Access.USER,
            OPENAI,
            {"POST": build_generation_handler(read_completions)},
        ),
    )
