"""Selection of a GGUF model from a repository: its quantization, its multimodal
projector.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from .errors import HubError
from .file_selection import RepositoryFile

_QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|F16|F32|MXFP4\w*|NVFP4\w*|FP16|FP8))$",
    re.IGNORECASE,
)


_SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.IGNORECASE)


_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0", "MXFP4")
"""Quantizations in order of preference where none is named; the first is llama.cpp's
default too.
"""


_PREFERRED_PROJECTORS = ("F16", "BF16", "F32", "Q8_0")


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
