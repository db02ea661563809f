"""Engines and stores of third parties: `python:MODULE:FACTORY`, or a name that an installed package registers.

A package registers a factory under the entry points group `dragoman.engines` or `dragoman.stores`. Only whoever starts
the server can name one; no request can.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from ..core.engine import Engine, HasContextLength
from ..engines.rollout import Executor
from ..pipeline.models import EventBackend, ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .declared import served_names
from .rollout import serve_executor

ENGINES, STORES = "dragoman.engines", "dragoman.stores"

Factory = Callable[[str, Settings], object]
"""Makes an Engine that is not started, a rollout Executor, or a ServedModel. Told: what stands behind its name in
MODEL, and the settings.

May raise ValueError.
"""

UNKNOWN_LENGTH = 131_072
"""Context length in tokens where neither the engine nor the settings state one; the engine itself rejects what is
longer than it can take.
"""


def installed(group: str, name: str) -> Callable[..., Any] | None:
    """What a package registered under this name; None if none did."""
    found = next(iter(entry_points(group=group, name=name)), None)
    return None if found is None else found.load()


def build_installed(settings: Settings, clock: Clock, name: str, argument: str) -> ServedModel | None:
    factory = installed(ENGINES, name)
    return None if factory is None else _served(factory, settings, clock, name, argument)


def build_python(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """path: MODULE:FACTORY, or MODULE:FACTORY:ARGUMENT. Modules in the working directory are found too."""
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
    return _served(factory, settings, clock, module.rpartition(".")[2], argument)


def _served(factory: Factory, settings: Settings, clock: Clock, own_name: str, argument: str) -> ServedModel:
    made = factory(argument, settings)
    if isinstance(made, ServedModel):
        return made
    limit = _context_length(made, settings.max_model_len)
    if not isinstance(made, Engine):
        if isinstance(made, Executor):
            return serve_executor(settings, clock, made, own_name=own_name, max_model_len=limit)
        raise ValueError(
            f"the factory returned a {type(made).__name__}; it must return an Engine, a rollout Executor, or a "
            "ServedModel (required for a token engine, since it holds the vocabulary)"
        )
    name, aliases = served_names(settings, own_name)
    return ServedModel(name, EventBackend(made), limit, int(clock.now()), aliases)


def _context_length(made: object, wanted: int | None) -> int:
    """Tokens. Raises ValueError where more is wanted than the engine states."""
    if not isinstance(made, HasContextLength):
        return wanted or UNKNOWN_LENGTH
    own = made.max_model_len
    if wanted is not None and wanted > own:
        raise ValueError(f"--max-model-len {wanted} exceeds the engine's context length of {own} tokens")
    return wanted or own
