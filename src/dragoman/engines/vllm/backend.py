"""vLLM, which this package needs and nothing else does. Imported when the engine is chosen.

Untyped here on purpose, as it is untyped without torch: what it gives is checked where it is used. Written against
vLLM 0.33.0; its names are in this one place, so that another version is met here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

from ...core.errors import EngineError

AsyncLLM: TypeAlias = Any
"""vllm.v1.engine.async_llm.AsyncLLM"""
VllmConfig: TypeAlias = Any
SamplingParams: TypeAlias = Any
RequestOutput: TypeAlias = Any
LoRARequest: TypeAlias = Any
Completion: TypeAlias = Any
"""One choice of a RequestOutput."""
Prompt: TypeAlias = Any
StructuredOutputs: TypeAlias = Any
SchedulerStats: TypeAlias = Any
IterationStats: TypeAlias = Any
FinishedStats: TypeAlias = Any

try:
    arguments: Any = import_module("vllm.engine.arg_utils")
    async_llm: Any = import_module("vllm.v1.engine.async_llm")
    sampling: Any = import_module("vllm.sampling_params")
    inputs: Any = import_module("vllm.inputs.engine")
    lora: Any = import_module("vllm.lora.request")
    loggers: Any = import_module("vllm.v1.metrics.loggers")
    tokenizers: Any = import_module("vllm.tokenizers")
    _errors: Any = import_module("vllm.exceptions")
    _engine_errors: Any = import_module("vllm.v1.engine.exceptions")
except ImportError as error:
    raise EngineError(f"{error}; this engine needs `pip install '.[vllm]'`") from error

ClientError: type[Exception] = _errors.VLLMClientError
"""The request is at fault. Its `parameter`, where it has one, names the field."""
ServerError: type[Exception] = _errors.VLLMServerError
DeadError: type[Exception] = _engine_errors.EngineDeadError
RetryableError: type[Exception] = _errors.RetryableRequestError
"""It is paused."""
BusyError: type[Exception] = _errors.GracefulHTTPError
"""No room in the queue now."""
