"""Logs of measured requests, as other tools write them: a file each for a tool. Bytes in, `Log` out; no I/O."""
