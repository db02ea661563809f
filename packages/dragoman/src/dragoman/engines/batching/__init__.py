"""Continuous batching for any model that computes logits from token ids; the base of
the local engines.

A model implements one forward step (`Model`, `Runner`); queueing, the block pool,
prefix caching, sampling, constraints and logprobs are shared by all of them.
"""

from .adapter_registry import AdapterRegistry
from .block_pool import BLOCK_SIZE
from .engine import BatchingEngine, build_capabilities, build_rng, check_request
from .engine_config import EngineConfig, EngineLimits
from .kv_offload import BlockFiles, compute_fingerprint
from .model_protocols import Model, Runner, SampledRows, StepStates, VisionRunner, place_images
from .sampler import GREEDY_BELOW, NumpySampledRows, SamplingState
from .scheduler import Chunk, SchedulerConfig
from .sequence import ReasoningBudgetState

__all__ = [
    "BLOCK_SIZE",
    "GREEDY_BELOW",
    "AdapterRegistry",
    "BatchingEngine",
    "BlockFiles",
    "Chunk",
    "EngineConfig",
    "EngineLimits",
    "Model",
    "NumpySampledRows",
    "ReasoningBudgetState",
    "Runner",
    "SampledRows",
    "SamplingState",
    "SchedulerConfig",
    "StepStates",
    "VisionRunner",
    "build_capabilities",
    "build_rng",
    "check_request",
    "compute_fingerprint",
    "place_images",
]
