"""What became of a prompt: the answer of the `explain` routes, which are this server's own."""

from .writer import PromptDifference, PromptExplanation, render_explanation

__all__ = ["PromptDifference", "PromptExplanation", "render_explanation"]
