"""Rerank and score, as Cohere, Jina and vLLM have them: what was asked, and the answers. Knows no model."""

from .reader import RerankCall, ScoreCall, read_rerank, read_score
from .writer import render_rerank, render_scores

__all__ = ["RerankCall", "ScoreCall", "read_rerank", "read_score", "render_rerank", "render_scores"]
