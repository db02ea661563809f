"""Runs canonical requests on any engine and yields batches of canonical events."""
