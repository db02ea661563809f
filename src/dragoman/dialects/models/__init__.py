"""The list of models, in one format that satisfies the strict parsers of both vendors' SDKs, and vLLM's."""

from .card import ModelCard, render_model, render_model_list

__all__ = ["ModelCard", "render_model", "render_model_list"]
