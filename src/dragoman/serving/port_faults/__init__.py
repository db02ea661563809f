"""Fault injection for listening ports, for tests of routers and clients: commands and routes."""
