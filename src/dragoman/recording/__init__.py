"""Exchanges with any upstream, kept as they were on the wire with their times, and played again. Knows no dialect."""
