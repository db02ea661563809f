"""Default limits of a step: those of the installed vLLM, for every device of the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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


# In a process of its own: vLLM chooses its platform when it is imported.
VLLM_DEFAULTS = """
import json, sys
from vllm.engine import arg_utils
from vllm.usage.usage_lib import UsageContext

class Platform(type(arg_utils.current_platform)):
    memory = name = None
    def get_device_total_memory(self, *_): return self.memory
    def get_device_name(self, *_): return self.name
    def is_device_capability(self, *_): return "GB10" in self.name
    def is_cpu(self): return False

arg_utils.current_platform = platform = Platform()
found = {}
for key, (platform.name, platform.memory) in json.load(sys.stdin).items():
    tokens, sequences = arg_utils.EngineArgs.get_batch_defaults(1)
    server = UsageContext.OPENAI_API_SERVER
    found[key] = {"max_num_seqs": sequences[server], "max_num_batched_tokens": tokens[server]}
print(json.dumps(found))
"""


@pytest.mark.vllm
def test_batch_defaults_equal_those_of_vllm() -> None:
    gpus = load_gpus()
    devices = {name: (gpu.name, int(gpu.memory)) for name, gpu in gpus.items()}
    output = subprocess.run(
        [sys.executable, "-c", VLLM_DEFAULTS],
        input=json.dumps(devices),
        env={**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = json.loads(output.splitlines()[-1])
    assert found == {name: find_batch_defaults(gpu) for name, gpu in gpus.items()}
