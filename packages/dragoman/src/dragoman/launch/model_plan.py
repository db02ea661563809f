"""What MODEL means: the engine and its argument, or a model of a hub."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct

from ..hub import ModelReference
from ..settings import Settings, SettingsError
from .engine_choice import choose_directory_engine
from .engine_registry import find_engine, list_engines
from .engine_spec import EngineSpec, LocalModels
from .hub_reference import find_reference

_OLLAMA_NAME = re.compile(r"[a-z-]+\d[a-z\d.-]*")


_OLLAMA_TAG = re.compile(r"latest$|\d+(\.\d+)?[bm]\b")
"""Names such as `llama3.2`, `qwen3:8b` and `mistral:latest` are those of Ollama:
https://ollama.com/library.
"""


_PACKAGES = {"sim": "dragoman-sim"}
"""Engines of our other packages, and the package of each."""
NAMED = "MODEL names it"
"""Why an engine is chosen that MODEL names."""


class ModelPlan(Struct, frozen=True):
    """What MODEL means. It is made once, and handed on to everything that needs it.

    model: the text of MODEL.
    engine: the engine's name; empty for a model of a hub whose engine is chosen from its
        files.
    argument: the argument of the engine, such as a path.
    spec: the engine; None if it is unknown, or not chosen yet.
    reference: the model of a hub; None for any other.
    reason: why the engine was chosen.
    """

    model: str
    engine: str
    argument: str
    spec: EngineSpec | None = None
    reference: ModelReference | None = None
    reason: str = NAMED

    @property
    def local(self) -> LocalModels | None:
        """How the engine loads the model, if the model is in files."""
        return None if self.spec is None or self.reference is not None else self.spec.local

    @property
    def names_engine(self) -> bool:
        """Whether MODEL names the engine; otherwise another one may support the model."""
        return self.argument != self.model

    @property
    def path(self) -> Path:
        """The path of a model in local files."""
        if not self.argument and self.local is not None and self.local.find_bundled is not None:
            return self.local.find_bundled()
        return Path(self.argument)

    @property
    def own_name(self) -> str | None:
        """The name of a model in local files; None for other models, whose engine names
        them.
        """
        if self.local is None:
            return None
        return self.local.format.find_name(self.path) if self.argument else self.engine


def plan_model(model: str, revision: str | None = None) -> ModelPlan:
    """Parse MODEL, and choose the engine of a model in local files.

    Raises:
        HubError: MODEL is a malformed name of a hub's model.
        ValueError: the model's configuration cannot be read, or no installed engine
            supports the model.
    """
    if (found := find_reference(model, revision)) is not None:
        reference, engine = found
        spec = None if engine is None else find_engine(engine)
        return ModelPlan(model, "" if spec is None else spec.name, model, spec, reference)
    name, _, argument = model.partition(":")
    spec = find_engine(name)
    if spec is not None and (argument or not spec.needs_argument):
        is_bundled = not argument and spec.local is not None
        reason = "it is the embedded model" if is_bundled else NAMED
        return ModelPlan(model, spec.name, argument, spec, reason=reason)
    for claiming in list_engines():
        if claiming.claims is not None and (claimed := claiming.claims(model)) is not None:
            reason = (
                f"it is a {claiming.local.format.name.upper()} file" if claiming.local else NAMED
            )
            return ModelPlan(model, claiming.name, claimed, claiming, reason=reason)
    if (Path(model) / "config.json").is_file():
        choice = choose_directory_engine(Path(model))
        chosen = find_engine(choice.engine)
        return ModelPlan(model, choice.engine, model, chosen, reason=choice.reason)
    return ModelPlan(model, name if spec is None else spec.name, argument, spec)


def plan_settings(settings: Settings) -> ModelPlan:
    """Parse MODEL of the settings, see `plan_model`.

    Raises:
        SettingsError: it cannot be parsed.
    """
    try:
        return plan_model(settings.model, settings.revision)
    except ValueError as error:
        raise SettingsError(f"cannot serve {settings.model}: {error}") from error


def build_unknown_message(plan: ModelPlan) -> str:
    """Build the message about a MODEL whose engine is unknown."""
    kind = plan.engine
    rest = plan.argument
    if _OLLAMA_NAME.fullmatch(kind) or _OLLAMA_TAG.match(rest):
        name = f"{kind}:{rest}" if rest else kind
        return (
            f"unknown engine or model `{name}`; names of Ollama's library are not names of the "
            f"hub: find the model at "
            "https://huggingface.co/models and serve it as `org/name`"
        )
    if kind in _PACKAGES:
        package = _PACKAGES[kind]
        return f"`{kind}` is an engine of {package}: pip install {package}"
    matches = get_close_matches(kind, [*_PACKAGES, *(spec.name for spec in list_engines())], n=1)
    if not matches:
        return (
            f"unknown engine or model `{kind}`; use `tiny`, `sim`, `scripted`, a model of the hub "
            f"(`org/name`), a "
            "model directory, a GGUF file, a URL, or ENGINE:DIRECTORY"
        )
    spec = find_engine(matches[0])
    if not rest and spec is not None and spec.needs_argument and spec.local is not None:
        rest = spec.local.format.placeholder
    return (
        f"unknown engine or model `{kind}`; did you mean `{matches[0]}{':' if rest else ''}{rest}`?"
    )
