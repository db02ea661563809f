"""Readers of logs of measured requests: bytes in, a `MeasuredLog` out. `tools.read_any`
reads every format.
"""
