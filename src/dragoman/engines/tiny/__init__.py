"""A small Llama in numpy: the engine that needs nothing but this package."""

from .engine import TinyEngine, find_bundled_model, load

__all__ = ["TinyEngine", "find_bundled_model", "load"]
