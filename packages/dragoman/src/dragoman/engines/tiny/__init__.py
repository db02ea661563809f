"""A small Llama in numpy: the engine without further dependencies."""

from .engine import TinyEngine, find_bundled_model, load

__all__ = ["TinyEngine", "find_bundled_model", "load"]
