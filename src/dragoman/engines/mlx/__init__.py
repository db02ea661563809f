"""Models of mlx-lm, with continuous batching of our own. Needs the extra `mlx`."""

from .engine import load

__all__ = ["load"]
