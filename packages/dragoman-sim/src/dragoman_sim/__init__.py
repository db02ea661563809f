"""A GPU-free twin of a vLLM fleet.

`engine` simulates vLLM's scheduler, cache and latencies on any clock, and serves it as
the engine `sim` of Dragoman; `lab` replays workloads offline, fits profiles to
measurements and plans capacity; `commands` are the commands `simulate`, `calibrate`,
`profile` and `plan`.
"""
