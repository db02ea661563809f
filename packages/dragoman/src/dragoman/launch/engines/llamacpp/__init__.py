"""The engine `llamacpp`: models in GGUF files."""
