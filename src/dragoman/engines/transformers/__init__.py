"""Models of the transformers library, with continuous batching of our own. Needs the extra `transformers`."""

from .engine import load
from .model import LoadOptions

__all__ = ["LoadOptions", "load"]
