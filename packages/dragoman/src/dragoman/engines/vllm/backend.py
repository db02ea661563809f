"""What this package imports from vLLM and Pillow, and the table of LoRA adapters.
Imported when the engine is selected.

The names are untyped, since vLLM's types need torch: values are checked where they are
used. Tested with vLLM 0.32 and 0.33. All imports are here, so that an adaptation to
another version starts with this module.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any, TypeAlias

from ...core.errors import EngineError, RequestError
from ...core.token_engine import TokenRequest
from . import check_version

AsyncLLM: TypeAlias = Any
"""vllm.v1.engine.async_llm.AsyncLLM"""
VllmConfig: TypeAlias = Any
SamplingParams: TypeAlias = Any
RequestOutput: TypeAlias = Any
LoRARequest: TypeAlias = Any
Completion: TypeAlias = Any
"""One choice of a RequestOutput."""
VllmPrompt: TypeAlias = Any
StructuredOutputs: TypeAlias = Any
SchedulerStats: TypeAlias = Any
IterationStats: TypeAlias = Any
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
    raise EngineError(f"{error}; this engine needs `pip install 'dragoman[vllm]'`") from error

ClientError: type[Exception] = _errors.VLLMClientError
"""An invalid request. Its `parameter`, if set, names the field."""
ServerError: type[Exception] = _errors.VLLMServerError
DeadError: type[Exception] = _engine_errors.EngineDeadError
RetryableError: type[Exception] = _errors.RetryableRequestError
"""The engine is paused."""
BusyError: type[Exception] = _errors.GracefulHTTPError
"""The queue is full."""


class AdapterTable:
    """The loaded LoRA adapters.

    vLLM caches weights by an adapter's number and KV blocks by its name. Each load gets
    a new number, and a name that no earlier load had, so cached blocks are never reused
    for a later adapter of the same name.

    on_drop: called with the name of an adapter that could not be loaded when vLLM
        started.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._used: set[str] = set()
        self._adapters: dict[str, LoRARequest] = {}
        self.on_drop: Callable[[str], None] = lambda _: None

    def create(self, name: str, path: str) -> LoRARequest:
        """Create a load request; `register` adds it to the table."""
        number = next(self._numbers)
        unique_name = name
        # Repeated, since `a#2` may be the name of another adapter.
        while unique_name in self._used:
            unique_name += f"#{number}"
        self._used.add(unique_name)
        return lora.LoRARequest(unique_name, number, path)

    def register(self, name: str, adapter: LoRARequest) -> None:
        self._adapters[name] = adapter

    def remove(self, name: str) -> None:
        self._adapters.pop(name, None)

    def drop(self, name: str) -> None:
        """Remove an adapter that could not be loaded."""
        self.remove(name)
        self.on_drop(name)

    def list_names(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    def get(self, name: str) -> LoRARequest:
        return self._adapters[name]

    def find_for(self, request: TokenRequest) -> LoRARequest | None:
        """Find the adapter of a request. Raises RequestError if it was unloaded."""
        name = request.extras.lora
        if name is None:
            return None
        adapter = self._adapters.get(name)
        if adapter is None:
            raise RequestError(f"The LoRA adapter `{name}` is not loaded.", param="model")
        return adapter
