"""Counting of a prompt's tokens by an engine that renders it itself."""

from __future__ import annotations

from ..core.engine import PromptCounter
from ..core.errors import Unsupported
from ..core.request import GenerateRequest
from .engine_backends import EventBackend
from .served_model import ServedModel


async def count_with_engine(model: ServedModel, request: GenerateRequest) -> int:
    """Count the prompt of an engine that renders it itself. Raises Unsupported if the
    engine cannot.
    """
    backend = model.backend
    if not isinstance(backend, EventBackend) or not isinstance(backend.engine, PromptCounter):
        raise Unsupported("This model's engine does not support counting tokens.", param="model")
    return await backend.engine.count_prompt_tokens(request)
