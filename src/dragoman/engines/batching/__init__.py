"""Continuous batching over any model that turns token ids into logits: the engine that others are made of.

A model says how it computes a step (`Model`, `Runner`); queueing, the pool of blocks, prefix caching, sampling,
constraints and scores are the same for all of them.
"""

from .adapters import AdapterShelf
from .blocks import BLOCK_SIZE
from .capabilities import capabilities
from .engine import BatchingEngine, EngineConfig, check_request, seeded
from .limits import EngineLimits
from .model import Model, Runner, Sight, States
from .offload import BlockFiles, fingerprint
from .placing import placed
from .scheduler import Chunk, SchedulerConfig

__all__ = [
    "BLOCK_SIZE",
    "AdapterShelf",
    "BatchingEngine",
    "BlockFiles",
    "Chunk",
    "EngineConfig",
    "EngineLimits",
    "Model",
    "Runner",
    "SchedulerConfig",
    "Sight",
    "States",
    "capabilities",
    "check_request",
    "fingerprint",
    "placed",
    "seeded",
]
