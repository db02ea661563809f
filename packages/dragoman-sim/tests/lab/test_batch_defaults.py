"""Default limits of a step: those of the installed vLLM, for every device of the table."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import pytest

from dragoman_sim.lab.batch_defaults import find_batch_defaults
from dragoman_sim.lab.gpus import find_gpu, load_gpus


@pytest.mark.parametrize(
    ("gpu", "max_num_seqs", "max_num_batched_tokens"),
    [
        ("l40s", 256, 2048),
        ("a100-sxm", 256, 2048),
        ("gb10", 256, 2048),
        ("h100-sxm", 1024, 8192),
        ("h200-sxm", 1024, 8192),
        ("b200", 1024, 16384),
        ("mi300x", 1024, 16384),
    ],
)
def test_batch_defaults_depend_on_memory_and_name(
    gpu: str, max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    assert find_batch_defaults(find_gpu(gpu)) == {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }


@pytest.mark.vllm
@pytest.mark.parametrize("name", sorted(load_gpus()))
def test_batch_defaults_equal_those_of_vllm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arg_utils: Any = import_module("vllm.engine.arg_utils")
    usage = import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    platform = cast("Any", type(arg_utils.current_platform))
    gpu = find_gpu(name)

    class Platform(platform):
        """The platform of vLLM on a machine with this device."""

        def get_device_total_memory(self, device_id: int = 0) -> int:
            return int(gpu.memory)

        def get_device_name(self, device_id: int = 0) -> str:
            return gpu.name

        def is_device_capability(self, capability: object, device_id: int = 0) -> bool:
            return "GB10" in gpu.name

        def is_cpu(self) -> bool:
            return False

    monkeypatch.setattr(arg_utils, "current_platform", Platform())
    tokens, sequences = arg_utils.EngineArgs.get_batch_defaults(1)
    assert find_batch_defaults(gpu) == {
        "max_num_seqs": sequences[usage],
        "max_num_batched_tokens": tokens[usage],
    }
