"""Readers of logs of measured requests, one module per tool. Bytes in, `MeasuredLog` out; no I/O."""
