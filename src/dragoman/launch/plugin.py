"""Third-party engines and stores: `python:MODULE:FACTORY`, or a name that an installed package registers.

A package registers a factory in the entry point group `dragoman.engines` or `dragoman.stores`. Only the settings can
name one, never a request.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature
from typing import Any

from ..core.engine import Engine, HasContextLength
from ..engines.rollout import Executor
from ..pipeline.models import EventBackend, ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .model_metadata import resolve_served_names
from .rollout import build_executor_model

ENGINES, STORES = "dragoman.engines", "dragoman.stores"

Factory = Callable[[str, Settings], object]
"""Creates an Engine that is not started, a rollout Executor, or a ServedModel, from MODEL's argument and the settings.

May raise ValueError.
"""

UNKNOWN_LENGTH = 131_072
"""Context length in tokens if neither the engine nor the settings state one; the engine rejects longer
requests.
"""


def load_entry_point(group: str, name: str) -> Callable[..., Any] | None:
    """Load the object that a package registered under this name; None if there is none."""
    entry_point = next(iter(entry_points(group=group, name=name)), None)
    return None if entry_point is None else entry_point.load()


def build_installed(settings: Settings, clock: Clock, name: str, argument: str) -> ServedModel | None:
    factory = load_entry_point(ENGINES, name)
    return None if factory is None else _build_model(factory, settings, clock, name, argument)


def build_python(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """path: MODULE:FACTORY, or MODULE:FACTORY:ARGUMENT. The working directory is on the module search path."""
    module, _, rest = path.partition(":")
    name, _, argument = rest.partition(":")
    if not module or not name:
        raise ValueError("a Python engine must have the form `python:MODULE:FACTORY`")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = vars(import_module(module))[name]
    except ImportError as error:
        raise ValueError(f"{module} cannot be imported: {error}") from error
    except KeyError:
        raise ValueError(f"{module} has no {name}") from None
    return _build_model(factory, settings, clock, module.rpartition(".")[2], argument)


def _build_model(factory: Factory, settings: Settings, clock: Clock, own_name: str, argument: str) -> ServedModel:
    try:
        signature(factory).bind(argument, settings)
    except TypeError as error:
        raise ValueError(f"the factory must take two arguments (argument, settings): {error}") from error
    built = factory(argument, settings)
    if isinstance(built, ServedModel):
        return built
    limit = _resolve_context_length(built, settings.max_model_len)
    if not isinstance(built, Engine):
        if isinstance(built, Executor):
            return build_executor_model(settings, clock, built, own_name=own_name, max_model_len=limit)
        raise ValueError(
            f"the factory returned a {type(built).__name__}; it must return an Engine, a rollout Executor, or a "
            "ServedModel (required for a token engine, since it holds the vocabulary)"
        )
    name, aliases = resolve_served_names(settings, own_name)
    return ServedModel(name, EventBackend(built), limit, int(clock.now()), aliases)


def _resolve_context_length(built: object, max_model_len: int | None) -> int:
    """Return the context length in tokens.

    Raises:
        ValueError: `max_model_len` exceeds the engine's context length.
    """
    if not isinstance(built, HasContextLength):
        return max_model_len or UNKNOWN_LENGTH
    own_length = built.max_model_len
    if max_model_len is not None and max_model_len > own_length:
        raise ValueError(f"--max-model-len {max_model_len} exceeds the engine's context length of {own_length} tokens")
    return max_model_len or own_length
