"""Processes for work that a request may make unbounded: they can be killed, and have a limit of CPU time and memory."""
