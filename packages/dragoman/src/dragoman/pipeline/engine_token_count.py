"""Counting of a prompt's tokens by an engine that renders it itself."""

from __future__ import annotations

from ..core.errors import Unsupported
from ..core.request import GenerateRequest
from .served_model import ServedModel


async def count_with_engine(model: ServedModel, request: GenerateRequest) -> int:
    """Count the prompt of an engine that renders it itself. Raises Unsupported if the
    engine cannot.
    """
    counter = model.interfaces.prompt_counter
    if counter is None:
        raise Unsupported("This model's engine does not support counting tokens.", param="model")
    return await counter.count_prompt_tokens(request)
