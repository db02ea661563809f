"""Faults of listening ports on order, for tests of routers and clients: what may be ordered, and its routes."""
