"""Servers whose tools this server calls itself, such as those of MCP."""
