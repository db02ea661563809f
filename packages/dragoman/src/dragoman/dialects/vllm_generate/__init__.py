"""vLLM's /inference/v1/generate, which maps token ids to token ids without any text."""
