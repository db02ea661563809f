"""OpenAI Completions, with vLLM's extensions."""
