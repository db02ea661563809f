"""Models of the transformers library with Dragoman's continuous batching. Needs the
extra `transformers`.
"""

from .load import load
from .load_network import TransformersOptions

__all__ = ["TransformersOptions", "load"]
