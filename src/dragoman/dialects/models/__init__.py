"""The list of models, in one shape that both vendors' SDKs read strictly, and vLLM's."""

from .card import ModelCard, render_model, render_model_list

__all__ = ["ModelCard", "render_model", "render_model_list"]
