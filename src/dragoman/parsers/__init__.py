"""Streaming parsers of reasoning and tool calls. Pure: no I/O, no clock, no tokenizer; `registry` is the entry
point.
"""
