"""The model that a request's query names."""

from __future__ import annotations

from ..pipeline.served_model import ServedModel
from .http_request import HttpRequest


async def find_queried_model(http: HttpRequest) -> ServedModel:
    """Load and return the model in the query, or else the default model."""
    models = http.service.models
    # The key may permit only models that are not served; then the name is empty, and
    # the model is not found.
    return await models.load_and_find(
        http.query.get("model") or next((slot.name for slot in models.slots), "")
    )


def select_queried_models(http: HttpRequest) -> list[ServedModel]:
    name = http.query.get("model")
    return list(http.service.models) if name is None else [http.service.models.find_loaded(name)]
