"""Workloads, the load driver that sends them, and logs of what was measured."""
