"""Encoders of the BERT and RoBERTa families in numpy: they read texts, and write none."""

from .engine import BertEmbedder, BertScorer, load

__all__ = ["BertEmbedder", "BertScorer", "load"]
