"""Model references (`org/name[:quant][@revision]`), selection of a repository's files,
and hub error messages.

Makes no network requests. Pickles (`*.bin`, `*.pt`, ...) are never selected, because
loading one can run code; Python files are selected only on request.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

_PART = r"[A-Za-z0-9_][\w.-]*"
_REFERENCE = re.compile(
    rf"(?P<repository>(?:{_PART}/)?{_PART})(?::(?P<quantization>[\w.-]+))?(?:@(?P<revision>[\w][\w./-]*))?"
)
_QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|F16|F32|MXFP4\w*|NVFP4\w*|FP16|FP8))$",
    re.IGNORECASE,
)
_SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.IGNORECASE)
METADATA_SUFFIXES = (".json", ".txt", ".jinja", ".model")
_SENTENCE_TRANSFORMERS = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")
"""Modules beside the transformer:
https://sbert.net/docs/package_reference/sentence_transformer/models.html.
"""
_TOKENIZER_FILES = re.compile(
    r"(tokenizer.*\.(json|model)|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt"
    r"|chat_template\.(jinja|json)|(generation_)?config\.json)"
)
_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0", "MXFP4")
"""Quantizations in order of preference where none is named; the first is llama.cpp's
default too.
"""
_PREFERRED_PROJECTORS = ("F16", "BF16", "F32", "Q8_0")
INDEX = "model.safetensors.index.json"
_STATUS_MESSAGES = {
    401: "{endpoint} does not accept HF_TOKEN; create a token and set it",
    403: "HF_TOKEN may not read {name}; use a token of an account that has access to it",
    451: "{name} has been disabled at {endpoint}; choose another model",
    429: "the rate limit of {endpoint} is exceeded; retry in a few minutes, or set HF_TOKEN for a "
    "higher limit",
}

Hub = Literal["huggingface", "modelscope"]


class HubError(ValueError):
    """A model cannot be found or downloaded. The message is one sentence that ends with
    the next step.
    """


# References: `org/name[:quant][@revision]`.


class ModelReference(Struct, frozen=True):
    """A model in a hub.

    repository: its id, `org/name`.
    quantization: of the GGUF file, such as `Q4_K_M`; None selects the preferred one.
    revision: a branch, a tag or a commit; None is the default branch.
    hub: the hub that hosts it.
    """

    repository: str
    quantization: str | None = None
    revision: str | None = None
    hub: Hub = "huggingface"

    def __str__(self) -> str:
        quantization = "" if self.quantization is None else f":{self.quantization}"
        hub = "modelscope:" if self.hub == "modelscope" else ""
        return f"{hub}{self.repository}{quantization}" + (
            "" if self.revision is None else f"@{self.revision}"
        )

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return (
            self.repository
            if self.quantization is None
            else f"{self.repository}:{self.quantization}"
        )


def looks_like_repository(text: str) -> bool:
    """Whether the text is `org/name[:quant][@revision]` and not a path on this machine."""
    match = _REFERENCE.fullmatch(text)
    return (
        match is not None
        and "/" in match["repository"]
        and not text.lower().endswith((".gguf", ".safetensors", ".json", ".yaml", ".yml"))
        and not Path(text).exists()
    )


def parse_reference(text: str, revision: str | None = None) -> ModelReference:
    """Parse a reference. revision: applies where the text names none.

    Raises:
        HubError: it is not a reference, or names another revision.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise HubError(
            f"{text!r} is not a model of a hub; write `org/name`, `org/name:QUANT` or "
            f"`org/name@REVISION`"
        )
    if match["revision"] and revision and match["revision"] != revision:
        raise HubError(
            f"{text} names the revision {match['revision']}, but --revision is {revision}; remove "
            f"one of them"
        )
    return ModelReference(match["repository"], match["quantization"], match["revision"] or revision)


# Selecting files.


class RepositoryFile(Struct, frozen=True):
    """A file of a repository.

    path: relative, with slashes.
    size: in bytes.
    sha256: of a large file; None for small files, which are in git itself.
    """

    path: str
    size: int
    sha256: str | None = None


class GgufModel(Struct, frozen=True):
    """A GGUF model: one file, or all parts of a split one.

    stem: the file name without `.gguf` and the number of the part.
    quantization: from its name; empty if the name has none.
    """

    stem: str
    quantization: str
    files: tuple[RepositoryFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def n_parts(self) -> int:
        """The number of parts by their names."""
        split = _SPLIT.fullmatch(self.files[0].path[: -len(".gguf")])
        return 1 if split is None else int(split["count"])

    @property
    def has_all_parts(self) -> bool:
        return len(self.files) == self.n_parts


class DownloadPlan(Struct, frozen=True):
    """The files of a model, and where they are in the cache.

    repository: `org/name`.
    revision: the branch, tag or commit that was requested.
    commit: the commit that it is.
    directory: of this commit's files.
    files: all that are needed, downloaded or not.
    entry: path of the GGUF file to load, relative to the directory; None loads the
        directory.
    projector: path of the GGUF file with the multimodal projector.
    hub: that has the repository.
    """

    repository: str
    revision: str
    commit: str
    directory: Path
    files: tuple[RepositoryFile, ...]
    entry: str | None = None
    projector: str | None = None
    hub: Hub = "huggingface"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def weights_size(self) -> int:
        return sum(
            file.size for file in self.files if file.path.endswith((".safetensors", ".gguf"))
        )

    def find_missing(self) -> tuple[RepositoryFile, ...]:
        return tuple(file for file in self.files if not (self.directory / file.path).is_file())

    @property
    def target(self) -> Path:
        """The file or directory to load."""
        return self.directory if self.entry is None else self.directory / self.entry


def is_inside(path: str) -> bool:
    """Whether a path of a repository stays in its directory."""
    return not path.startswith("/") and "\\" not in path and ".." not in path.split("/")


def find_gguf_models(files: Iterable[RepositoryFile]) -> tuple[GgufModel, ...]:
    """Find the GGUF models, without projectors and importance matrices."""
    parts: dict[str, list[RepositoryFile]] = {}
    for file in files:
        name = file.path.rpartition("/")[2].lower()
        # Only names tell them apart here: the metadata is inside the files.
        if name.endswith(".gguf") and "mmproj" not in name and "imatrix" not in name:
            path = file.path[: -len(".gguf")]
            split = _SPLIT.fullmatch(path)
            parts.setdefault(split["stem"] if split else path, []).append(file)
    return tuple(
        GgufModel(stem, _read_quantization(stem), tuple(sorted(files, key=lambda file: file.path)))
        for stem, files in sorted(parts.items())
    )


def _read_quantization(stem: str) -> str:
    match = _QUANTIZATION.search(stem)
    return "" if match is None else match[1].upper()


def select_gguf_files(
    name: str, files: Sequence[RepositoryFile], quantization: str | None
) -> tuple[GgufModel, RepositoryFile | None]:
    """Select one GGUF model and its multimodal projector. name: the repository, for
    messages.

    Raises:
        HubError: no file has this quantization, several files have it, or parts are
            missing.
    """
    models = find_gguf_models(files)
    if not models:
        raise HubError(f"{name} has no GGUF file; serve it without `gguf:`")
    if quantization is None:
        candidates = [min(models, key=_rank_model)]
    else:
        label = quantization.upper()
        candidates = [
            m for m in models if label in (m.quantization, m.stem.rpartition("/")[2].upper())
        ]
    if not candidates:
        available = ", ".join(dict.fromkeys(model.quantization or model.stem for model in models))
        raise HubError(f"{name} has no quantization {quantization}; choose one of {available}")
    if len(candidates) > 1:
        stems = ", ".join(model.stem.rpartition("/")[2] for model in candidates)
        raise HubError(
            f"{name} has several files of quantization {quantization}; name one of them instead: "
            f"{stems}"
        )
    [model] = candidates
    # An upload in progress, or a fork that left parts out: llama.cpp would fail only
    # after the download.
    if not model.has_all_parts:
        raise HubError(
            f"{name} has only {len(model.files)} of the {model.n_parts} parts of {model.stem}; "
            f"choose another "
            "quantization"
        )
    projectors = [
        file
        for file in files
        if file.path.lower().endswith(".gguf") and "mmproj" in file.path.rpartition("/")[2].lower()
    ]
    return model, min(projectors, key=_rank_projector, default=None)


def _rank_model(model: GgufModel) -> tuple[int, bool, int]:
    quantization = model.quantization.removeprefix("UD-")
    rank = _PREFERRED.index(quantization) if quantization in _PREFERRED else len(_PREFERRED)
    return rank, quantization != model.quantization, model.size


def _rank_projector(file: RepositoryFile) -> tuple[int, int, str]:
    quantization = _read_quantization(file.path[: -len(".gguf")])
    is_preferred = quantization in _PREFERRED_PROJECTORS
    rank = _PREFERRED_PROJECTORS.index(quantization) if is_preferred else len(_PREFERRED_PROJECTORS)
    return rank, file.size, file.path


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


# Errors of `huggingface_hub`.


@contextmanager
def translate_errors(name: str) -> Generator[None]:
    """Raise HubError instead of the errors of `huggingface_hub` and of the network.
    name: the model, for messages.
    """
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        message = _describe_error(name, error)
        if message is None:
            raise
        raise HubError(message) from error


def _describe_error(name: str, error: Exception) -> str | None:  # noqa: PLR0911 - a table
    """Describe an error of the hub, the network or the disk in one sentence; None for
    any other error.
    """
    from huggingface_hub import constants, errors  # noqa: PLC0415 - takes a fifth of a second

    endpoint = constants.ENDPOINT
    # LocalEntryNotFoundError only says that the download failed; its cause says why.
    is_local = isinstance(error, errors.LocalEntryNotFoundError)
    cause = error.__cause__ if is_local else error
    # httpx2's errors, or httpx's with huggingface_hub 1.
    is_network_error = is_local or any(
        base.__name__ == "TransportError" for base in type(cause).__mro__
    )
    match error:
        case errors.GatedRepoError():
            return (
                f"{name} is gated: accept its terms at {endpoint}/{name} and set HF_TOKEN to a "
                f"token of that account"
            )
        case errors.RepositoryNotFoundError():
            return (
                f"{name} does not exist at {endpoint}, or is private; check the spelling, or set "
                f"HF_TOKEN to a token "
                "that may read it"
            )
        case errors.RevisionNotFoundError():
            return f"{name} has no such revision; see {endpoint}/{name}/commits/main"
        case errors.HFValidationError():
            return f"{name} is not the id of a repository; write `org/name`"
        case errors.HfHubHTTPError():
            status = error.response.status_code
            message = _STATUS_MESSAGES.get(
                status, "{endpoint} returned status {status} for {name}; retry later"
            )
            return message.format(endpoint=endpoint, name=name, status=status)
        case _ if isinstance(cause, errors.OfflineModeIsEnabled):
            return (
                f"{name} is not completely downloaded, and HF_HUB_OFFLINE is set; unset it and "
                f"run `dragoman pull "
                f"{name}`"
            )
        case _ if isinstance(cause, errors.FileMetadataError):
            return f"{endpoint} does not answer like a Hugging Face hub; check HF_ENDPOINT"
        case _ if is_network_error:
            return (
                f"{endpoint} cannot be reached; check the network, HF_ENDPOINT and the proxy "
                f"settings"
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return (
                f"the disk is full; free space, then run the command again to continue the "
                f"download of {name} "
                "(HF_HUB_CACHE selects another disk)"
            )
        case _:
            return None
