"""Start a vLLM of the embedded model; only its executor is replaced."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec

import pytest

from dragoman.engines import tiny
from dragoman.launch import build_models
from dragoman.pipeline.model_registry import Models
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

EXECUTOR = "tests.engines.vllm.executor.NumpyExecutor"
DIES_OF = 13
"""A stop token that no model samples: the executor's process exits at the fourth token
of a request that has it.
"""

ARGUMENTS = {
    "distributed_executor_backend": EXECUTOR,
    "async_scheduling": False,
    "block_size": 16,
    "enforce_eager": True,
    "enable_lora": True,
}


@contextmanager
def without_accelerator() -> Generator[None]:
    """Configure vLLM for machines without an accelerator. Set before vLLM is imported;
    its processes inherit it.
    """
    if find_spec("vllm") is None:
        pytest.skip("needs vLLM")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_TARGET_DEVICE", "cpu")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
        yield


def has_kernels() -> bool:
    """Whether this vLLM has kernels for CPUs."""
    return find_spec("vllm._C") is not None


def settings(**more: object) -> Settings:
    return Settings().replace(
        model=f"vllm:{tiny.find_bundled_model()}",
        max_model_len=4096,
        max_num_seqs=32,
        dtype="float32",
        vllm_args=json.dumps(ARGUMENTS | more),
    )


@asynccontextmanager
async def start_vllm(settings: Settings) -> AsyncGenerator[Models]:
    with without_accelerator():
        models = build_models(settings, SystemClock())
        await models.start()
        try:
            yield models
        finally:
            await models.stop()
