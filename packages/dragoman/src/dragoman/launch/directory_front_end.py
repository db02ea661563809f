"""Builds the model of a front end from a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..pipeline.served_model import ServedModel
    from ..serving.clock import Clock
    from ..settings import Settings
    from .front_end import FrontEnd


def build_directory_front_end(
    settings: Settings, clock: Clock, path: Path, name: str, front_end: FrontEnd
) -> ServedModel:
    """Build the model. The parameters are those of `LocalModels.build_front_end`."""
    from ..core.engine_interfaces import EngineInterfaces  # noqa: PLC0415 - as below
    from .model_builder import build_token_model  # noqa: PLC0415 - numpy takes long to import

    client = front_end.client
    description = front_end.description
    return build_token_model(
        settings,
        clock,
        path,
        client,
        own_name=name,
        max_model_len=client.max_model_len,
        embedder=client.embedder,
        interfaces=EngineInterfaces(
            control=client.control if description.has_control else None,
            trainable=client.control if description.is_trainable else None,
            cache=front_end.cache,
        ),
        adapters=front_end.adapters,
    )
