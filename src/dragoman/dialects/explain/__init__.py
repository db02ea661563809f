"""What became of a prompt: the answer of the `explain` routes, which are this server's own."""

from .writer import Difference, Explained, explanation

__all__ = ["Difference", "Explained", "explanation"]
