"""Details of a GGUF file, read from its header without the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ....core.errors import EngineError
from ....engines.llamacpp.gguf_metadata import find_parts, read_metadata_and_size
from ....engines.llamacpp.gguf_settings import compute_bytes_per_token
from ....hub import RepositoryFile, find_gguf_models
from ....pipeline.served_model import ModelDetails

_FILE_TYPES = {
    **{
        1: "F16",
        2: "Q4_0",
        3: "Q4_1",
        7: "Q8_0",
        8: "Q5_0",
        9: "Q5_1",
        10: "Q2_K",
        11: "Q3_K_S",
        12: "Q3_K_M",
    },
    **{
        13: "Q3_K_L",
        14: "Q4_K_S",
        15: "Q4_K_M",
        16: "Q5_K_S",
        17: "Q5_K_M",
        18: "Q6_K",
        25: "IQ4_NL",
    },
    **{30: "IQ4_XS", 32: "BF16", 38: "MXFP4"},
}
"""llama.cpp's `llama_ftype` of common quantizations, for files whose name does not
state it.
"""


def read_gguf_details(path: Path) -> ModelDetails:
    """Read the details of a GGUF file. Details that cannot be read are None."""
    size = sum(part.stat().st_size for part in find_parts(path) if part.exists())
    models = find_gguf_models([RepositoryFile(path.name, size)])
    named = models[0].quantization if models else ""
    details = ModelDetails(source=str(path), format="gguf", quantization=named or None, size=size)
    try:
        metadata, parameters = read_metadata_and_size(path)
    except EngineError:
        return details
    return replace(
        details,
        family=metadata.architecture,
        quantization=named or _FILE_TYPES.get(metadata.get_number("general.file_type") or 0),
        parameters=parameters,
        trained_length=metadata.get_number(metadata.build_architecture_key("context_length")),
        kv_bytes_per_token=compute_bytes_per_token(metadata),
    )
