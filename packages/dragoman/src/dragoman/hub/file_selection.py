"""Selection of the files of a model from its repository. Makes no network requests.

Pickles (`*.bin`, `*.pt`, ...) are never selected, because loading one can run code;
Python files are selected only on request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from .errors import HubError

METADATA_SUFFIXES = (".json", ".txt", ".jinja", ".model")
_SENTENCE_TRANSFORMERS = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")
"""Modules beside the transformer:
https://sbert.net/docs/package_reference/sentence_transformer/models.html.
"""
_TOKENIZER_FILES = re.compile(
    r"(tokenizer.*\.(json|model)|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt"
    r"|chat_template\.(jinja|json)|(generation_)?config\.json)"
)
INDEX = "model.safetensors.index.json"


class RepositoryFile(Struct, frozen=True):
    """A file of a repository.

    path: relative, with slashes.
    size: in bytes.
    sha256: of a large file; None for small files, which are in git itself.
    """

    path: str
    size: int
    sha256: str | None = None


def is_inside(path: str) -> bool:
    """Whether a path of a repository stays in its directory."""
    return not path.startswith("/") and "\\" not in path and ".." not in path.split("/")


class _Index(Struct):
    weight_map: dict[str, str]


def select_weight_files(
    name: str, files: Sequence[RepositoryFile], index: bytes | None, *, code: bool = False
) -> tuple[RepositoryFile, ...]:
    """Select the configuration, the tokenizer and the safetensors of a model.

    index: the content of model.safetensors.index.json, where there is one.
    code: select Python files too.

    Raises:
        HubError: safetensors are missing: all, or some that the index lists.
    """
    by_path = {file.path: file for file in files}
    if index is not None:
        try:
            paths = sorted(set(msgspec.json.decode(index, type=_Index).weight_map.values()))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HubError(
                f"{name}: {INDEX} is invalid ({error}); choose another revision"
            ) from error
        # A path that leaves the directory is not in the list of files either.
        if missing := [path for path in paths if path not in by_path]:
            raise HubError(
                f"{name} lacks {missing[0]}, which its index lists; choose another revision"
            )
    elif "model.safetensors" in by_path:
        paths = ["model.safetensors"]
    else:
        # Mistral's repositories have the weights twice: `consolidated*` is the same
        # model in Mistral's own format.
        paths = [
            path
            for path in by_path
            if path.endswith(".safetensors")
            and "/" not in path
            and not path.startswith(("adapter_", "consolidated"))
        ]
        if not paths and "adapter_config.json" in by_path:
            raise HubError(
                f"{name} is a LoRA adapter; serve its base model with `--lora-modules NAME={name}`"
            )
        if not paths and any(path.endswith((".bin", ".pt", ".pth", ".ckpt")) for path in by_path):
            raise HubError(
                f"{name} has its weights in pickle files only, which can run code; choose a "
                f"repository with safetensors"
            )
        if not paths:
            raise HubError(
                f"{name} has no safetensors and no GGUF file; choose a repository that has"
            )
    metadata = [
        file
        for file in files
        if ("/" not in file.path and file.path.endswith(METADATA_SUFFIXES))
        or _SENTENCE_TRANSFORMERS.fullmatch(file.path)
        or (code and "/" not in file.path and file.path.endswith(".py"))
    ]
    return tuple(dict.fromkeys((*metadata, *(by_path[path] for path in paths))))


def select_tokenizer_files(
    name: str, files: Iterable[RepositoryFile]
) -> tuple[RepositoryFile, ...]:
    """Select the tokenizer and its configuration. Raises HubError if tokenizer.json is
    missing.
    """
    selected = tuple(file for file in files if _TOKENIZER_FILES.fullmatch(file.path))
    if not any(file.path == "tokenizer.json" for file in selected):
        raise HubError(f"{name} has no tokenizer.json; choose a repository that has one")
    return selected


def is_adapter(files: Iterable[RepositoryFile]) -> bool:
    """Whether a repository holds a LoRA adapter and no model beside it."""
    paths = {file.path for file in files}
    return "adapter_config.json" in paths and not paths & {"model.safetensors", INDEX}


def select_adapter_files(name: str, files: Iterable[RepositoryFile]) -> tuple[RepositoryFile, ...]:
    """Select a LoRA adapter. Raises HubError if it is not in safetensors."""
    selected = tuple(
        file for file in files if file.path in ("adapter_config.json", "adapter_model.safetensors")
    )
    if len(selected) != 2:
        raise HubError(
            f"{name} is not a LoRA adapter in safetensors (adapter_config.json and "
            f"adapter_model.safetensors); choose "
            "a repository that is one"
        )
    return selected
