"""Marks the tests of further models as long: a short run tries one model of each mechanism
of the engine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FURTHER_MODELS = frozenset(
    {
        # llama, phi3, gemma3_text, gpt_oss and qwen3_moe remain: grouped heads, fused
        # projections, sliding windows, sinks, experts.
        *("mistral", "qwen2", "qwen3", "gemma2", "granite", "olmo2", "gpt2", "vaultgemma"),
        # Of the extended contexts, phi3's long factors and llama4's chunks remain.
        *("phimoe longrope", "dynamic", "windows"),
        # qwen3_next and mamba2 remain: attention beside recurrent layers, and none.
        *("lfm2", "falcon_h1", "jamba", "zamba2", "granitemoehybrid"),
        # llava and qwen2_5_vl remain: tiles of one size, and of any.
        *("idefics3", "qwen3_5"),
        # Of the records of architectures, one served and two refused ones remain.
        *("cohere2", "llama4_text", "mimo_v2_flash", "moshi", "nemotron", "phi3, longrope"),
    }
)
"""Parameters of tests, as in their names."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == FOLDER:
            parameters = item.name.removeprefix(f"{item.originalname}[").removesuffix("]")
            if FURTHER_MODELS & {parameters, *parameters.split("-")}:
                item.add_marker(pytest.mark.long)
