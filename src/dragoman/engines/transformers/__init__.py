"""Models of the transformers library, with continuous batching of our own. Needs the extra `transformers`."""

from .engine import load
from .model import TransformersOptions

__all__ = ["TransformersOptions", "load"]
