"""OpenAI's legacy completions."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.completions import read_completions
from ..auth import Access
from ..endpoint import OPENAI, Route
from ..generate import build_generation_handler


def build_routes() -> Sequence[Route]:
    return (
        Route(
            "/v1/completions",
            Access.USER,
            OPENAI,
            {"POST": build_generation_handler(read_completions)},
        ),
    )
