"""The trainer of the embedded model: synthetic chat in, a small Llama out. Nothing in
the server imports it.
"""
