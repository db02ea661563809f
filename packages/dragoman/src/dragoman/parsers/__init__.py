"""Streaming parsers of reasoning and tool calls, without I/O, clock or tokenizer;
`registry` is the entry point.
"""
