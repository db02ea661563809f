"""The trainer of the embedded model: generates synthetic conversations and trains a
small Llama on them. The server does not import it.
"""
