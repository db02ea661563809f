"""Decisions: questions about an input, answered by the probabilities of the first token.

OpenAI's `/v1/decisions`, and `/v1/systemone` as in vLLM and Ollama's clients. Each
question becomes a prompt of its own, which ends with the options, a letter each; the
answer is the softmax over the letters' log-probabilities.
"""

from .openai_reader import read_decisions
from .systemone_reader import read_systemone

__all__ = ["read_decisions", "read_systemone"]
