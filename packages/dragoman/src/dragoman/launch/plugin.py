"""Third-party engines: `python:MODULE:FACTORY`, or a name that an installed package
registers.

Only the settings can name one, never a request.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from dragoman_cli.entry_points import load_entry_point

from ..core.engine import Engine, HasContextLength
from ..core.engine_interfaces import EngineInterfaces
from ..core.errors import DragomanError
from ..core.token_engine import TokenEngine
from ..engines.rollout_control import RolloutControl, RolloutTraining
from ..engines.rollout_engine import RolloutEngine
from ..engines.rollout_executor import Executor
from ..pipeline.engine_backends import EventBackend
from ..pipeline.served_model import ServedModel
from ..prompts.hf_tokenizer import load_tokenizer
from ..serving.clock import Clock
from ..settings import Settings
from .engine_spec import FACTORIES
from .model_builder import build_token_model
from .model_metadata import resolve_served_names

log = logging.getLogger(__name__)

Factory = Callable[[str, Settings], object]
"""Creates a SupportedEngine that is not started, from MODEL's argument and the
settings.

May raise ValueError.
"""

UNKNOWN_LENGTH = 131_072
"""Context length in tokens if neither the engine nor the settings state one; the engine
rejects longer requests.
"""

_FACTORY = "a factory must be a function that takes (argument: str, settings: dragoman.Settings)"
_RESULT = (
    "it must be an Engine, a TokenEngine with a `tokenizer` directory and a `max_model_len`, a "
    "rollout Executor, or a "
    "ServedModel"
)
_ENGINE_MEMBERS = ("capabilities", "generate", "start", "stop", "health")
_TOKEN_ENGINE_MEMBERS = (
    "capabilities",
    "add",
    "abort",
    "start",
    "stop",
    "health",
    "tokenizer",
    "max_model_len",
)


@runtime_checkable
class TokenEngineWithTokenizer(TokenEngine, Protocol):
    """A TokenEngine with everything that is needed to serve it."""

    @property
    def tokenizer(self) -> str | Path:
        """A directory with tokenizer.json and optionally the other metadata of a model,
        such as the chat template.
        """
        ...

    @property
    def max_model_len(self) -> int:
        """Tokens of the prompt and the output together."""
        ...


SupportedEngine = Engine | TokenEngineWithTokenizer | Executor | ServedModel


class UnsupportedEngineError(ValueError):
    """An object is not a supported engine. The message begins with a description of the
    object.
    """


def build_registered(settings: Settings, clock: Clock, name: str, argument: str) -> ServedModel:
    """Build a model with the factory that an installed package registers under this name."""
    factory = load_entry_point(FACTORIES, name)
    return _build_model(factory, settings, clock, name, argument)


def build_python(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build a model with a factory in a Python module. The working directory is on the
    module search path.

    path: MODULE:FACTORY or MODULE:FACTORY:ARGUMENT.
    """
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


def _build_model(
    factory: Factory, settings: Settings, clock: Clock, own_name: str, argument: str
) -> ServedModel:
    if not callable(factory):
        raise ValueError(f"the factory is an object of type {type(factory).__name__}; {_FACTORY}")
    try:
        # Checked before the call, since a TypeError raised inside the factory would
        # look the same.
        inspect.signature(factory).bind(argument, settings)
    except TypeError as error:
        name = getattr(factory, "__name__", type(factory).__name__)
        raise ValueError(
            f"{name}{inspect.signature(factory)} cannot be called: {error}; {_FACTORY}"
        ) from error
    try:
        built = factory(argument, settings)
    except (ValueError, OSError, DragomanError):
        raise
    except Exception as error:
        log.debug("the factory of an engine raised", exc_info=True)
        raise ValueError(f"the factory raised {type(error).__name__}: {error}") from error
    if inspect.iscoroutine(built):
        built.close()
        raise ValueError(f"the factory is a coroutine function; {_FACTORY}")
    try:
        return build_served_model(built, settings, clock, own_name=own_name)
    except UnsupportedEngineError as error:
        raise ValueError(f"the factory returned {error}") from error


def build_served_model(
    built: object, settings: Settings, clock: Clock, *, own_name: str
) -> ServedModel:
    """Build a served model around an object that a factory returned.

    Raises:
        UnsupportedEngineError: the object is not a SupportedEngine.
        OSError, ValueError, EngineError: the tokenizer's directory cannot be read.
    """
    if isinstance(built, ServedModel):
        return built
    if isinstance(built, type):
        raise UnsupportedEngineError(
            f"the class {built.__name__} instead of an instance; {_RESULT}"
        )
    limit = settings.max_model_len or UNKNOWN_LENGTH
    if isinstance(built, HasContextLength):
        own_length = built.max_model_len
        limit = settings.max_model_len or own_length
        if limit > own_length:
            raise ValueError(
                f"--max-model-len {limit} exceeds the engine's context length of {own_length} "
                f"tokens"
            )
    # Checked by name before the protocol: the error for an incomplete engine lists the
    # missing members.
    if all(hasattr(built, name) for name in ("add", "abort")):
        if not isinstance(built, TokenEngineWithTokenizer):
            missing = _describe_missing(built, _TOKEN_ENGINE_MEMBERS)
            raise UnsupportedEngineError(
                f"an object of type {type(built).__name__}; {_RESULT}{missing}"
            )
        directory = Path(built.tokenizer)
        if not (directory / "tokenizer.json").is_file():
            raise ValueError(
                f"`tokenizer` must be a directory with a tokenizer.json, not {directory}"
            )
        return build_token_model(
            settings,
            clock,
            directory,
            built,
            own_name=own_name,
            max_model_len=limit,
            interfaces=EngineInterfaces(),
        )
    if isinstance(built, Engine):
        if inspect.iscoroutinefunction(built.generate):
            raise UnsupportedEngineError(
                f"an object of type {type(built).__name__} whose `generate` yields nothing; "
                "it must be an async generator of events"
            )
        name, aliases = resolve_served_names(settings, own_name)
        return ServedModel(name, EventBackend(built), limit, int(clock.now()), aliases)
    if isinstance(built, Executor):
        return build_executor_model(settings, clock, built, own_name=own_name, max_model_len=limit)
    raise UnsupportedEngineError(
        f"an object of type {type(built).__name__}; "
        f"{_RESULT}{_describe_missing(built, _ENGINE_MEMBERS)}"
    )


def _describe_missing(built: object, members: Sequence[str]) -> str:
    missing = [f"`{name}`" for name in members if not hasattr(built, name)]
    return (
        f" ({type(built).__name__} lacks {', '.join(missing)})"
        if 0 < len(missing) < len(members)
        else ""
    )


def build_executor_model(
    settings: Settings, clock: Clock, executor: Executor, *, own_name: str, max_model_len: int
) -> ServedModel:
    """Build a served model around a rollout executor.

    Raises: OSError, ValueError, EngineError if the tokenizer cannot be loaded.
    """
    directory = Path(executor.tokenizer)
    engine = RolloutEngine(
        executor,
        vocab=load_tokenizer(directory).vocab_size,
        max_model_len=max_model_len,
        max_waiting=settings.max_queued_requests,
    )
    parts = engine.parts
    control = None if parts.pausable is None else RolloutControl(engine, parts.pausable)
    training = (
        None if parts.updatable is None else RolloutTraining(engine, parts.updatable, control)
    )
    return build_token_model(
        settings,
        clock,
        directory,
        engine,
        own_name=own_name,
        max_model_len=max_model_len,
        interfaces=EngineInterfaces(control=control, trainable=training),
    )
