"""The engine `transformers`: models of the transformers library."""
