"""What to download of a repository, from the list of its files. No I/O.

Pickles (`*.bin`, `*.pt`, ...) are never selected, since loading one runs code; code is selected only on request.
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

# The error of this package, and one sentence for each error of `huggingface_hub`.


class HubError(ValueError):
    """A model cannot be found or downloaded. The message is one sentence that ends with the next step."""


@contextmanager
def translate_errors(name: str) -> Generator[None]:
    """Raise HubError instead of the errors of `huggingface_hub` and of the network. name: the model, for messages."""
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        message = _describe_answer(name, error) or _describe_failure(name, error)
        if message is None:
            raise
        raise HubError(message) from error


def _describe_answer(name: str, error: Exception) -> str | None:
    """The sentence for an error that the hub answered with."""
    from huggingface_hub import constants, errors  # noqa: PLC0415 - takes a fifth of a second

    endpoint = constants.ENDPOINT
    match error:
        case errors.GatedRepoError():
            return f"{name} is gated: accept its terms at {endpoint}/{name} and set HF_TOKEN to a token of that account"
        case errors.RepositoryNotFoundError():
            return (
                f"{name} does not exist at {endpoint}, or is private; check the spelling, or set HF_TOKEN to a token "
                "that may read it"
            )
        case errors.RevisionNotFoundError():
            return f"{name} has no such revision; see {endpoint}/{name}/commits/main"
        case errors.HFValidationError():
            return f"{name} is not the id of a repository; write `org/name`"
        case errors.HfHubHTTPError():
            return _describe_status(name, error.response.status_code, endpoint)
        case _:
            return None


def _describe_failure(name: str, error: Exception) -> str | None:
    """The sentence for an error of this machine or of the network; None for any other error."""
    from huggingface_hub import constants, errors  # noqa: PLC0415 - takes a fifth of a second

    # LocalEntryNotFoundError says that a file could not be downloaded, and its cause why.
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return (
            f"{name} is not completely downloaded, and HF_HUB_OFFLINE is set; unset it and run `dragoman pull {name}`"
        )
    if isinstance(cause, errors.FileMetadataError):
        return f"{constants.ENDPOINT} does not answer as a hub does; check HF_ENDPOINT"
    # httpx2's errors, or httpx's with huggingface_hub 1.
    is_network_error = any(base.__name__ == "TransportError" for base in type(cause).__mro__)
    if is_network_error or isinstance(error, errors.LocalEntryNotFoundError):
        return f"{constants.ENDPOINT} cannot be reached; check the network, HF_ENDPOINT and the proxy settings"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk is full; free space, then run the command again to continue the download of {name} "
            "(HF_HUB_CACHE selects another disk)"
        )
    return None


def _describe_status(name: str, status: int, endpoint: str) -> str:
    match status:
        case 401:
            return f"{endpoint} does not accept HF_TOKEN; create a token and set it"
        case 403:
            return f"HF_TOKEN may not read {name}; use a token of an account that has access to it"
        case 451:
            return f"{name} has been disabled at {endpoint}; choose another model"
        case 429:
            return f"{endpoint} limits the rate of requests; retry in a few minutes, or set HF_TOKEN for a higher limit"
        case _:
            return f"{endpoint} returned status {status} for {name}; retry later"


# Names of models in a hub: `org/name[:quant][@revision]`.

_PART = r"[A-Za-z0-9_][\w.-]*"
_REFERENCE = re.compile(
    rf"(?P<repository>(?:{_PART}/)?{_PART})(?::(?P<quantization>[\w.-]+))?(?:@(?P<revision>[\w][\w./-]*))?"
)


Hub = Literal["huggingface", "modelscope"]


class ModelReference(Struct, frozen=True):
    """A model in a hub.

    repository: its id, `org/name`.
    quantization: of a GGUF file, as `Q4_K_M`; None selects one.
    revision: a branch, a tag or a commit; None is the default branch.
    hub: that has it.
    """

    repository: str
    quantization: str | None = None
    revision: str | None = None
    hub: Hub = "huggingface"

    def __str__(self) -> str:
        quantization = "" if self.quantization is None else f":{self.quantization}"
        hub = "modelscope:" if self.hub == "modelscope" else ""
        return f"{hub}{self.repository}{quantization}" + ("" if self.revision is None else f"@{self.revision}")

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.repository if self.quantization is None else f"{self.repository}:{self.quantization}"


def looks_like_repository(text: str) -> bool:
    """Whether the text is `org/name[:quant][@revision]` and no path on this machine."""
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
        raise HubError(f"{text!r} is not a model of a hub; write `org/name`, `org/name:QUANT` or `org/name@REVISION`")
    if match["revision"] and revision and match["revision"] != revision:
        raise HubError(f"{text} names the revision {match['revision']}, and --revision is {revision}; name one of them")
    return ModelReference(match["repository"], match["quantization"], match["revision"] or revision)


_QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|F16|F32|MXFP4\w*|NVFP4\w*|FP16|FP8))$", re.IGNORECASE
)
_SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.IGNORECASE)
METADATA_SUFFIXES = (".json", ".txt", ".jinja", ".model")
_SENTENCE_TRANSFORMERS = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")
"""Modules beside the transformer: https://sbert.net/docs/package_reference/sentence_transformer/models.html."""
_TOKENIZER_FILES = re.compile(
    r"(tokenizer.*\.(json|model)|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt"
    r"|chat_template\.(jinja|json)|(generation_)?config\.json)"
)
_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0", "MXFP4")
"""Quantizations in order of preference where none is named; the first is llama.cpp's default too."""
_PREFERRED_PROJECTORS = ("F16", "BF16", "F32", "Q8_0")
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


class DownloadPlan(Struct, frozen=True):
    """What to download of a repository.

    repository: `org/name`.
    revision: the branch, tag or commit that was requested.
    commit: the commit that it is.
    directory: of this commit's files.
    files: all that are needed, downloaded or not.
    entry: path of the GGUF file to load, relative to the directory; None loads the directory.
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
        return sum(file.size for file in self.files if file.path.endswith((".safetensors", ".gguf")))

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
        GgufModel(stem, _read_quantization(stem), tuple(sorted(found, key=lambda file: file.path)))
        for stem, found in sorted(parts.items())
    )


def _read_quantization(stem: str) -> str:
    match = _QUANTIZATION.search(stem)
    return "" if match is None else match[1].upper()


def select_gguf_files(
    name: str, files: Sequence[RepositoryFile], quantization: str | None
) -> tuple[GgufModel, RepositoryFile | None]:
    """Select one GGUF model and its multimodal projector. name: the repository, for messages.

    Raises:
        HubError: there is no such quantization, several files have it, or parts are missing.
    """
    models = find_gguf_models(files)
    model = _select_gguf_model(name, models, quantization)
    split = _SPLIT.fullmatch(model.files[0].path[: -len(".gguf")])
    # An upload in progress, or a fork that left parts out: llama.cpp would fail only after the download.
    if split is not None and len(model.files) != int(split["count"]):
        raise HubError(
            f"{name} has only {len(model.files)} of the {int(split['count'])} parts of {model.stem}; choose another "
            "quantization"
        )
    projectors = [
        file
        for file in files
        if file.path.lower().endswith(".gguf") and "mmproj" in file.path.rpartition("/")[2].lower()
    ]
    return model, min(projectors, key=_rank_projector, default=None)


def _select_gguf_model(name: str, models: Sequence[GgufModel], quantization: str | None) -> GgufModel:
    available = ", ".join(dict.fromkeys(model.quantization or model.stem for model in models))
    if not models:
        raise HubError(f"{name} has no GGUF file; serve it without `gguf:`")
    if quantization is None:
        return min(models, key=_rank_model)
    wanted = quantization.upper()
    found = [model for model in models if wanted in (model.quantization, model.stem.rpartition("/")[2].upper())]
    if not found:
        raise HubError(f"{name} has no quantization {quantization}; choose one of {available}")
    if len(found) > 1:
        names = ", ".join(model.stem.rpartition("/")[2] for model in found)
        raise HubError(f"{name} has several files of quantization {quantization}; name one of them instead: {names}")
    return found[0]


def _rank_model(model: GgufModel) -> tuple[int, bool, int]:
    quantization = model.quantization.removeprefix("UD-")
    rank = _PREFERRED.index(quantization) if quantization in _PREFERRED else len(_PREFERRED)
    return rank, quantization != model.quantization, model.size


def _rank_projector(file: RepositoryFile) -> tuple[int, int, str]:
    quantization = _read_quantization(file.path[: -len(".gguf")])
    found = quantization in _PREFERRED_PROJECTORS
    return _PREFERRED_PROJECTORS.index(quantization) if found else len(_PREFERRED_PROJECTORS), file.size, file.path


class _Index(Struct):
    weight_map: dict[str, str]


def select_weight_files(
    name: str, files: Sequence[RepositoryFile], index: bytes | None, *, code: bool = False
) -> tuple[RepositoryFile, ...]:
    """Select the configuration, the tokenizer and the safetensors of a model.

    index: the content of model.safetensors.index.json, where there is one.
    code: select Python files too.

    Raises:
        HubError: there are no safetensors, or not all that the index lists.
    """
    by_path = {file.path: file for file in files}
    weights = _select_weights(name, by_path, index)
    metadata = [
        file
        for file in files
        if ("/" not in file.path and file.path.endswith(METADATA_SUFFIXES))
        or _SENTENCE_TRANSFORMERS.fullmatch(file.path)
        or (code and "/" not in file.path and file.path.endswith(".py"))
    ]
    return tuple(dict.fromkeys((*metadata, *weights)))


def _select_weights(name: str, by_path: dict[str, RepositoryFile], index: bytes | None) -> list[RepositoryFile]:
    if index is not None:
        try:
            names = sorted(set(msgspec.json.decode(index, type=_Index).weight_map.values()))
        except msgspec.DecodeError as error:
            raise HubError(f"{name}: {INDEX} is invalid ({error}); choose another revision") from error
        missing = [path for path in names if path not in by_path]
        if missing:
            raise HubError(f"{name} lacks {missing[0]}, which its index lists; choose another revision")
        # A path that leaves the directory is not in the list of files, so it has been rejected above.
        return [by_path[path] for path in names]
    if "model.safetensors" in by_path:
        return [by_path["model.safetensors"]]
    # Mistral's repositories have the weights twice: `consolidated*` is the same model in Mistral's own format.
    weights = [
        file
        for path, file in by_path.items()
        if path.endswith(".safetensors") and "/" not in path and not path.startswith(("adapter_", "consolidated"))
    ]
    if not weights:
        raise HubError(_describe_unloadable(name, by_path))
    return weights


def _describe_unloadable(name: str, paths: Iterable[str]) -> str:
    names = set(paths)
    if "adapter_config.json" in names:
        return f"{name} is a LoRA adapter; serve its base model with `--lora-modules NAME={name}`"
    if any(path.endswith((".bin", ".pt", ".pth", ".ckpt")) for path in names):
        return f"{name} has its weights in pickle files only, which can run code; choose a repository with safetensors"
    return f"{name} has no safetensors and no GGUF file; choose a repository that has"


def select_tokenizer_files(name: str, files: Iterable[RepositoryFile]) -> tuple[RepositoryFile, ...]:
    """Select the tokenizer and its configuration. Raises HubError where there is no tokenizer.json."""
    found = tuple(file for file in files if _TOKENIZER_FILES.fullmatch(file.path))
    if not any(file.path == "tokenizer.json" for file in found):
        raise HubError(f"{name} has no tokenizer.json; choose a repository that has one")
    return found


def is_adapter(files: Iterable[RepositoryFile]) -> bool:
    """Whether a repository holds a LoRA adapter and no model beside it."""
    paths = {file.path for file in files}
    return "adapter_config.json" in paths and not paths & {"model.safetensors", INDEX}


def select_adapter_files(name: str, files: Iterable[RepositoryFile]) -> tuple[RepositoryFile, ...]:
    """Select a LoRA adapter. Raises HubError where there is none in safetensors."""
    found = tuple(file for file in files if file.path in ("adapter_config.json", "adapter_model.safetensors"))
    if len(found) != 2:
        raise HubError(
            f"{name} is not a LoRA adapter in safetensors (adapter_config.json and adapter_model.safetensors); choose "
            "a repository that is one"
        )
    return found
