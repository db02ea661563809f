"""vLLM's names, needed only by this package. Imported when the engine is selected.

Deliberately untyped, since vLLM's types need torch: values are checked where they are used. Written against
vLLM 0.32 and 0.33; all of its names are in this module, so that changes for another version are local.

Capabilities of vLLM as configured, and the versions that this server works with. Pure: does not need vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any, TypeAlias

from msgspec import Struct

from ...core.engine import CONSTRAINT_FEATURES, Capabilities, Feature, TokenRequest
from ...core.errors import EngineError, RequestError

SUPPORTED_VERSIONS = ((0, 32), (0, 33))
"""The first and the last release of vLLM that the tests run with. Its Python interface changes with every release."""

ReasoningDelimiters = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids that begin and end reasoning, as configured at startup."""


COPIED_PARAMETERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""Parameters that `build_sampling_params` copies to vLLM's fields of the same names."""
_CONVERTED_PARAMETERS = ("seed", "logit_bias", "allowed_token_ids", "bad_words")
"""Parameters that it converts."""
# Without close_at_limit: vLLM runs grammars in its own process, where the end of an answer cannot be replaced.
_LIMITS = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "include_stop", "ignore_eos", "truncate_prompt")
_EXTRAS = ("vllm_xargs", "data_parallel_rank", "session_id")


class VllmFeatures(Struct, frozen=True):
    """Features of a vLLM configuration.

    eos_id: the token that ends its grammars; None without grammar support.
    reasoning_delimiters: see `request`.
    can_sleep: sleep mode is enabled.
    has_kv_transfer: a KV connector is configured.
    has_priorities: the lowest priority runs first.
    has_tracing: vLLM records spans.
    has_images: the model reads images.
    """

    max_model_len: int
    vocab_size: int
    max_logprobs: int
    eos_id: int | None = None
    reasoning_delimiters: ReasoningDelimiters | None = None
    has_lora: bool = False
    can_sleep: bool = False
    has_kv_transfer: bool = False
    has_priorities: bool = False
    has_tracing: bool = False
    has_images: bool = False

    def build_capabilities(self) -> Capabilities:
        features = {Feature.TOOLS, Feature.LOGPROBS, Feature.PROMPT_LOGPROBS, Feature.TOKEN_IDS}
        parameters = {*COPIED_PARAMETERS, *_CONVERTED_PARAMETERS, *_LIMITS, *_EXTRAS}
        if self.eos_id is not None:
            features |= CONSTRAINT_FEATURES
        if self.reasoning_delimiters is not None:
            features.add(Feature.REASONING_BUDGET)
        if self.has_lora:
            features.add(Feature.LORA)
            parameters.add("lora")
        if self.has_images:
            features.add(Feature.IMAGES)
        if self.has_kv_transfer:
            parameters.add("kv_transfer_params")
        return Capabilities(frozenset(features), frozenset(parameters), self.max_logprobs)


def check_version(installed: str) -> None:
    """Raise EngineError for a vLLM that this server does not work with. installed: `vllm.__version__`."""
    match = re.match(r"(\d+)\.(\d+)", installed)
    # A build from sources without tags has no number to compare.
    if match is None or SUPPORTED_VERSIONS[0] <= (int(match[1]), int(match[2])) <= SUPPORTED_VERSIONS[1]:
        return
    first, last = (".".join(map(str, version)) for version in SUPPORTED_VERSIONS)
    raise EngineError(
        f"vLLM {installed} is installed, but this server works with vLLM {first} to {last}: pip install '.[vllm]'"
    )


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


class AdapterTable:
    """Loaded adapters. vLLM caches weights by an adapter's number and blocks by its name. Both are unique to a load, so
    that cached blocks are never reused for a successor of the same name.

    on_drop: called with the name of an adapter that could not be loaded at a start.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._used: set[str] = set()
        self._adapters: dict[str, LoRARequest] = {}
        self.on_drop: Callable[[str], None] = lambda _: None

    def create(self, name: str, path: str) -> LoRARequest:
        """Create a load request; `register` adds it to the table."""
        number = next(self._numbers)
        unique_name = f"{name}#{number}" if name in self._used else name
        self._used.add(name)
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
            raise RequestError(f"The lora adapter '{name}' is not loaded.", param="model")
        return adapter
