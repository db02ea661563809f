"""Models of mlx-lm with Dragoman's continuous batching. Needs the extra `mlx`."""

from .engine import load

__all__ = ["load"]
