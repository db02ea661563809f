"""Models of the transformers library with Dragoman's continuous batching. Needs the
extra `transformers`.
"""

from .engine import load
from .model import TransformersOptions

__all__ = ["TransformersOptions", "load"]
