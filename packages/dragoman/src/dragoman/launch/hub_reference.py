"""MODEL as the name of a model of the hub (`org/name`, `hf:...`, a URL)."""

from __future__ import annotations

import os

from ..hub import (
    ModelReference,
    looks_like_repository,
    parse_reference,
)
from .engine_registry import find_engine

_HOSTS = ("https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/")
"""Prefixes of a model's name in URLs of the hub, and in Ollama's names of the hub's
models.
"""


def find_reference(
    model: str, revision: str | None = None
) -> tuple[ModelReference, str | None] | None:
    """Parse MODEL as the name of a model of a hub.

    Returns: the reference and the engine that MODEL names, if any; None if MODEL is
        something else.

    Raises:
        HubError: the text after `hf:` or the hub's host is not the name of a model.
    """
    host = next((host for host in _HOSTS if model.startswith(host)), None)
    if host is not None and not os.path.exists(model):
        return parse_reference(model.removeprefix(host).rstrip("/"), revision), None
    kind, _, name = model.partition(":")
    if kind == "hf" and name:
        return parse_reference(name.removeprefix("//"), revision), None
    spec = find_engine(kind)
    if spec is not None and spec.local is not None and name:
        return (parse_reference(name, revision), spec.name) if looks_like_repository(name) else None
    return (parse_reference(model, revision), None) if looks_like_repository(model) else None
