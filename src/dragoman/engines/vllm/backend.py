"""vLLM's names, needed only by this package. Imported when the engine is selected.

Deliberately untyped, since vLLM's types need torch: values are checked where they are used. Written against
vLLM 0.32 and 0.33; all of its names are in this module, so that changes for another version are local.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

from ...core.errors import EngineError
from .config import check_version

AsyncLLM: TypeAlias = Any
"""vllm.v1.engine.async_llm.AsyncLLM"""
VllmConfig: TypeAlias = Any
ModelConfig: TypeAlias = Any
PoolerConfig: TypeAlias = Any
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
DraftStats: TypeAlias = Any
PoolingParams: TypeAlias = Any
PoolingResult: TypeAlias = Any
"""The tensor of a PoolingRequestOutput."""
Processor: TypeAlias = Any
"""vllm.multimodal.processing.BaseMultiModalProcessor"""
MultiModalItem: TypeAlias = Any
PlaceholderMask: TypeAlias = Any

try:
    check_version(import_module("vllm").__version__)
    arguments: Any = import_module("vllm.engine.arg_utils")
    async_llm: Any = import_module("vllm.v1.engine.async_llm")
    sampling: Any = import_module("vllm.sampling_params")
    inputs: Any = import_module("vllm.inputs.engine")
    pooling: Any = import_module("vllm.pooling_params")
    lora: Any = import_module("vllm.lora.request")
    loggers: Any = import_module("vllm.v1.metrics.loggers")
    tokenizers: Any = import_module("vllm.tokenizers")
    scoring_models: Any = import_module("vllm.model_executor.models.interfaces")
    scoring: Any = import_module("vllm.entrypoints.pooling.scoring.utils")
    multimodal: Any = import_module("vllm.multimodal")
    mm_types: Any = import_module("vllm.multimodal.inputs")
    mm_inputs: Any = import_module("vllm.multimodal.processing.inputs")
    mm_context: Any = import_module("vllm.multimodal.processing.context")
    model_loader: Any = import_module("vllm.model_executor.model_loader")
    pillow: Any = import_module("PIL.Image")
    _errors: Any = import_module("vllm.exceptions")
    _engine_errors: Any = import_module("vllm.v1.engine.exceptions")
except ImportError as error:
    raise EngineError(f"{error}; this engine needs `pip install '.[vllm]'`") from error

ClientError: type[Exception] = _errors.VLLMClientError
"""An invalid request. Its `parameter`, if set, names the field."""
ServerError: type[Exception] = _errors.VLLMServerError
DeadError: type[Exception] = _engine_errors.EngineDeadError
RetryableError: type[Exception] = _errors.RetryableRequestError
"""The engine is paused."""
BusyError: type[Exception] = _errors.GracefulHTTPError
"""The queue is full."""
