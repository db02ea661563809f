"""Dragoman: one process that speaks every LLM API dialect, in front of any engine."""

__version__ = "0.1.0"
