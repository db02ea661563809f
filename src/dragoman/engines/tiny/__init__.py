"""A small Llama in numpy: the engine that needs nothing but this package."""

from .engine import TinyConfig, TinyEngine, embedded, load, seeded
from .scheduler import SchedulerConfig

__all__ = ["SchedulerConfig", "TinyConfig", "TinyEngine", "embedded", "load", "seeded"]
