"""The list of models, in one shape that both vendors' SDKs read strictly, and vLLM's."""

from .card import ModelCard, model_list, model_object

__all__ = ["ModelCard", "model_list", "model_object"]
