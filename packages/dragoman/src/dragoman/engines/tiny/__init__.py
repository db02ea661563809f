"""A small Llama in numpy: the engine without further dependencies."""

from ..bundled_model import find_bundled_model
from .engine import TinyEngine, load

__all__ = ["TinyEngine", "find_bundled_model", "load"]
