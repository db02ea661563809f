"""The checks, one module an API or subject."""
