"""The response of the `explain` routes, an extension of this server: how a prompt was rendered and cached."""

from .writer import PromptDifference, PromptExplanation, render_explanation

__all__ = ["PromptDifference", "PromptExplanation", "render_explanation"]
