"""Text into reasoning and tool calls, as it streams. Pure: no I/O, no clock, no tokenizer; `registry` is the way in."""
