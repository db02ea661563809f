"""The Responses API with a memory: what is made, kept, continued, listed and followed."""
