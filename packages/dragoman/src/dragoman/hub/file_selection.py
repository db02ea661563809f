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
MAX_METADATA_BYTES = 64 << 20
"""Largest list of files, and largest file that is read whole: the index of the largest
models (140,000 tensors) has 15 MB, Gemma's tokenizer.json 33 MB.
"""
MAX_METADATA_FILES = 1000
_MAX_PATH_BYTES = 1024
_MAX_NAME_BYTES = 255


class RepositoryFile(Struct, frozen=True):
    """A file of a repository.

    path: relative, with slashes.
    size: in bytes.
    sha256: of a large file; None for small files, which are in git itself.
    blob_id: the id that git gives a small file.
    """

    path: str
    size: int
    sha256: str | None = None
    blob_id: str | None = None

    @property
    def checksum(self) -> str:
        """The checksum by which the file is verified, and which names it in the cache.

        Raises:
            HubError: the list of files has none.
        """
        checksum = self.sha256 or self.blob_id
        if checksum is None:
            raise HubError(f"the hub lists {self.path} without a checksum; check HF_ENDPOINT")
        return checksum


def is_inside(path: str) -> bool:
    """Whether a path of a repository, or the name of a branch, stays in its directory
    and is a name on every file system.
    """
    return (
        path.isprintable()
        and not any(character in path for character in "\\:")
        and len(path.encode()) <= _MAX_PATH_BYTES
        and all(
            part not in ("", ".", "..") and len(part.encode()) <= _MAX_NAME_BYTES
            for part in path.split("/")
        )
    )


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
        # Pickles, which `weight_map` may name too, can run code.
        if other := [path for path in paths if not path.endswith(".safetensors")]:
            raise HubError(
                f"{name}: {INDEX} lists {other[0]}, which is not in safetensors; choose another "
                f"revision"
            )
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
    metadata = _check_sizes(
        name,
        (
            file
            for file in files
            if ("/" not in file.path and file.path.endswith(METADATA_SUFFIXES))
            or _SENTENCE_TRANSFORMERS.fullmatch(file.path)
            or (code and "/" not in file.path and file.path.endswith(".py"))
        ),
    )
    return tuple(dict.fromkeys((*metadata, *(by_path[path] for path in paths))))


def select_tokenizer_files(
    name: str, files: Iterable[RepositoryFile]
) -> tuple[RepositoryFile, ...]:
    """Select the tokenizer and its configuration. Raises HubError if tokenizer.json is
    missing.
    """
    selected = _check_sizes(name, (file for file in files if _TOKENIZER_FILES.fullmatch(file.path)))
    if not any(file.path == "tokenizer.json" for file in selected):
        raise HubError(f"{name} has no tokenizer.json; choose a repository that has one")
    return selected


def _check_sizes(name: str, files: Iterable[RepositoryFile]) -> tuple[RepositoryFile, ...]:
    """Leave out files that are too large for metadata, such as a data set in JSON.
    Raises HubError for those that engines read whole.
    """
    selected: list[RepositoryFile] = []
    for file in files:
        if file.size <= MAX_METADATA_BYTES or file.path.endswith(".safetensors"):
            selected.append(file)
        elif _TOKENIZER_FILES.fullmatch(file.path) or file.path.endswith("config.json"):
            raise HubError(
                f"{file.path} of {name} has more than {MAX_METADATA_BYTES >> 20} MiB; choose "
                f"another repository"
            )
    if len(selected) > MAX_METADATA_FILES:
        raise HubError(
            f"{name} has {len(selected)} configuration files, more than {MAX_METADATA_FILES}; "
            f"choose another repository"
        )
    return tuple(selected)


def is_adapter(files: Iterable[RepositoryFile]) -> bool:
    """Whether a repository holds a LoRA adapter and no model beside it."""
    paths = {file.path for file in files}
    return "adapter_config.json" in paths and not paths & {"model.safetensors", INDEX}


def select_adapter_files(name: str, files: Iterable[RepositoryFile]) -> tuple[RepositoryFile, ...]:
    """Select a LoRA adapter. Raises HubError if it is not in safetensors."""
    selected = _check_sizes(
        name,
        (
            file
            for file in files
            if file.path in ("adapter_config.json", "adapter_model.safetensors")
        ),
    )
    if len(selected) != 2:
        raise HubError(
            f"{name} is not a LoRA adapter in safetensors (adapter_config.json and "
            f"adapter_model.safetensors); choose "
            "a repository that is one"
        )
    return selected
