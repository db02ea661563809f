"""Rerank and score, as in Cohere, Jina and vLLM: request parsing and response rendering. Knows no model."""

from .reader import RerankCall, ScoreCall, read_rerank, read_score
from .writer import render_rerank, render_scores, render_tei_rerank

__all__ = [
    "RerankCall",
    "ScoreCall",
    "read_rerank",
    "read_score",
    "render_rerank",
    "render_scores",
    "render_tei_rerank",
]
