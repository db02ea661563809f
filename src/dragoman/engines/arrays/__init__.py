"""Shared parts of the numpy models: row-independent products, weight files, batching of inputs."""
