"""Encoders of the BERT and RoBERTa families in numpy, for embeddings and reranking."""

from .engine import BertEmbedder, BertScorer, load

__all__ = ["BertEmbedder", "BertScorer", "load"]
