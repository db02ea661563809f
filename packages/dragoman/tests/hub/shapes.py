"""Six repositories with different layouts and small weights."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from tests.engines.encoder.directories import write_encoder
from tests.hub.stub import StubRepository

from dragoman.engines.tiny import find_bundled_model

SINGLE = "org/single"
SHARDED = "org/sharded"
GGUF = "org/small-GGUF"
SPLIT = "org/split-GGUF"
ENCODER = "org/encoder"
LORA = "org/lora"
MODELS = (SINGLE, SHARDED, GGUF, f"{SPLIT}:q8_0", ENCODER)
PICKLE = b"\x80\x04cos\nsystem\n"


def read_files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def write_safetensors(tensors: dict[str, tuple[dict[str, Any], bytes]]) -> bytes:
    header: dict[str, Any] = {}
    offset = 0
    chunks = list[bytes]()
    for name, (entry, data) in tensors.items():
        header[name] = {**entry, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        chunks.append(data)
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + b"".join(chunks)


def read_safetensors(data: bytes) -> dict[str, tuple[dict[str, Any], bytes]]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    return {
        name: (
            {"dtype": entry["dtype"], "shape": entry["shape"]},
            body[slice(*entry["data_offsets"])],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def shard(files: dict[str, bytes]) -> dict[str, bytes]:
    """Split a model into two files and an index."""
    tensors = read_safetensors(files["model.safetensors"])
    names = sorted(tensors)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    shards = {
        f"model-0000{number}-of-00002.safetensors": {name: tensors[name] for name in half}
        for number, half in enumerate(halves, 1)
    }
    weight_map = {name: file for file, held in shards.items() for name in held}
    return {
        **{name: data for name, data in files.items() if name != "model.safetensors"},
        **{file: write_safetensors(held) for file, held in shards.items()},
        "model.safetensors.index.json": json.dumps(
            {"metadata": {}, "weight_map": weight_map}
        ).encode(),
    }


def random_bytes(seed: int, size: int) -> bytes:
    return b"GGUF" + random.Random(seed).randbytes(size)


def build_repositories(folder: Path) -> dict[str, StubRepository]:
    """folder: an empty directory for the files of the encoder."""
    tiny = read_files(find_bundled_model())
    readme = {
        "README.md": b"# a model",
        "pytorch_model.bin": PICKLE,
        "modeling.py": b"raise SystemExit",
        "training_args.bin": PICKLE,
    }
    return {
        SINGLE: StubRepository({**readme, **tiny}),
        SHARDED: StubRepository({**readme, **shard(tiny)}),
        GGUF: StubRepository(
            {
                "README.md": b"# a model",
                **{
                    f"small-{name}.gguf": random_bytes(number, 300_000)
                    for number, name in enumerate(("Q4_K_M", "Q8_0", "F16"))
                },
            }
        ),
        SPLIT: StubRepository(
            {
                **{
                    f"Q8_0/split-Q8_0-0000{number}-of-00003.gguf": random_bytes(number, 200_000)
                    for number in (1, 2, 3)
                },
                "split-Q4_K_M.gguf": random_bytes(9, 100_000),
                "mmproj-split-F16.gguf": random_bytes(10, 100_000),
                "mmproj-split-F32.gguf": random_bytes(11, 100_000),
            }
        ),
        ENCODER: StubRepository({**readme, **read_files(write_encoder(folder))}),
        LORA: StubRepository(
            {
                **readme,
                "adapter_config.json": json.dumps(
                    {"base_model_name_or_path": SINGLE, "r": 2}
                ).encode(),
                "adapter_model.safetensors": write_safetensors(
                    {
                        "lora_A": (
                            {"dtype": "F32", "shape": [2, 4096]},
                            np.zeros((2, 4096), np.float32).tobytes(),
                        )
                    }
                ),
            }
        ),
    }
