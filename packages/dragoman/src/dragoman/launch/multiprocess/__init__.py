"""Several worker processes on one port: a supervisor that starts and replaces them, and
the worker's side.
"""
