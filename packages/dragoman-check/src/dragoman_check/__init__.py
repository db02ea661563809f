"""Checks any server of the OpenAI, Anthropic and Ollama APIs over HTTP: `dragoman check
URL`.

`conformance` holds the wire grammars; this package asks the server, and judges what it
answers. It imports nothing of the server.
"""
