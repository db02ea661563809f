"""Continuous batching over any model that turns token ids into logits. The local engines build on this package.

A model implements one forward step (`Model`, `Runner`); queueing, the block pool, prefix caching, sampling,
constraints and logprobs are shared by all of them.
"""

from .adapters import AdapterRegistry
from .blocks import BLOCK_SIZE
from .capabilities import build_capabilities
from .engine import BatchingEngine, EngineConfig, build_rng, check_request
from .image_placement import place_images
from .limits import EngineLimits
from .model import Model, Runner, SampledRows, StepStates, VisionRunner
from .offload import BlockFiles, compute_fingerprint
from .reasoning_budget import ReasoningBudgetState
from .sampler import NumpySampledRows
from .sampling import GREEDY_BELOW, SamplingState
from .scheduler import Chunk, SchedulerConfig

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
