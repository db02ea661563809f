"""Readers of logs of measured requests: bytes in, a `MeasuredLog` out.
`log_reader.read_any` reads every format.
"""
