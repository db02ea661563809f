"""MODEL: the engine's name and its argument."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path

from .engine_choice import detect_engine
from .engine_spec import ENGINES, find_engine_spec
from .hub_reference import find_reference
from .local_models import check_directory

_OLLAMA_NAME = re.compile(r"[a-z-]+\d[a-z\d.-]*")


_OLLAMA_TAG = re.compile(r"latest$|\d+(\.\d+)?[bm]\b")
"""Names such as `llama3.2`, `qwen3:8b` and `mistral:latest` are those of Ollama:
https://ollama.com/library.
"""


DIRECTORY_ENGINES = ("tiny", "transformers", "mlx", "encoder", "llamacpp")


ENGINES_WITH_DIRECTORY = ("transformers", "vllm", "mlx", "encoder", "tiny")


_ENGINES = (
    "tiny",
    "sim",
    "scripted",
    "transformers",
    "vllm",
    "mlx",
    "encoder",
    "llamacpp",
    "python",
)


_PACKAGES = {"sim": "dragoman-sim"}
"""Engines of our other packages, and the package of each."""


def check_model(model: str) -> None:
    """Check MODEL without loading an engine.

    Raises:
        ValueError: MODEL names no known engine, or its path does not exist.
    """
    if find_reference(model) is not None:
        return
    kind, rest = parse_model(model)
    # An upstream may start later than this server, and a Python factory can only be
    # checked by calling it.
    if kind in ("upstream", "python") or model == "tiny":
        return
    if is_installed(kind):
        spec = find_engine_spec(kind)
        if spec is not None and spec.check is not None:
            spec.check(rest)
    elif kind in ("scripted", "llamacpp"):
        if rest and Path(rest).is_dir():
            raise ValueError(f"{rest} is a directory; name the file in it")
        if rest and not Path(rest).is_file():
            raise ValueError(f"{rest} does not exist")
    elif kind in ENGINES_WITH_DIRECTORY:
        if not rest:
            raise ValueError(f"`{kind}` needs a model: {kind}:DIRECTORY")
        check_directory(rest)
    elif "/" in kind or Path(model).exists():
        check_directory(model)
    else:
        raise ValueError(build_unknown_message(kind, rest))


def is_installed(engine: str) -> bool:
    """Whether an installed package registers an engine of this name."""
    return bool(entry_points(group=ENGINES, name=engine))


def build_unknown_message(kind: str, rest: str) -> str:
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
    matches = get_close_matches(kind, _ENGINES, n=1)
    if not matches:
        return (
            f"unknown engine or model `{kind}`; use `tiny`, `sim`, `scripted`, a model of the hub "
            f"(`org/name`), a "
            "model directory, a GGUF file, a URL, or ENGINE:DIRECTORY"
        )
    rest = rest or (
        "DIRECTORY" if matches[0] in ENGINES_WITH_DIRECTORY and matches[0] != "tiny" else ""
    )
    return (
        f"unknown engine or model `{kind}`; did you mean `{matches[0]}{':' if rest else ''}{rest}`?"
    )


def parse_model(model: str) -> tuple[str, str]:
    """Split MODEL into the engine's name and its argument.

    Raises:
        ValueError: see `detect_engine`.
    """
    if (parsed := find_reference(model)) is not None:
        # The engine of a repository is unknown until its files are listed.
        return parsed[1] or "hub", model
    kind, _, rest = model.partition(":")
    kind = "llamacpp" if kind == "gguf" else kind
    if kind in ("scripted", "sim") or (kind in DIRECTORY_ENGINES and rest) or model == "tiny":
        return kind, rest
    if kind in ("http", "https"):
        return "upstream", model
    if model.endswith(".gguf"):
        return "llamacpp", model
    if (Path(model) / "config.json").is_file():
        return detect_engine(Path(model)), model
    return kind, rest
