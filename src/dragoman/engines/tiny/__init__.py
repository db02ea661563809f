"""A small Llama in numpy: the engine that needs nothing but this package."""

from .engine import TinyEngine, embedded, load

__all__ = ["TinyEngine", "embedded", "load"]
