"""A simulation of vLLM without a GPU: its scheduler, its cache and its latency, on any clock.

    config       limits of the scheduler             latency        duration of a step
    hashing      hashes of block contents            profile        hardware and model, as a file
    blocks       the pool and the prefix cache       workload       requests of a trace; `workload_sources` has some
    sequence     state of one request, the queue     fitting        from a log and a replay to equations,
    scheduler    what each step computes
    engine_core  steps that take time                calibrate      a profile, evaluated on held-out requests
    routing      which replica serves a request      report         what a benchmark prints
    replay       a workload on a virtual clock       fleet          replicas behind a router; how many are enough
    timing       when a request began and ended
    disaggregated_replay  prefill and decode pools   disaggregation leases, transfers, vLLM's transfer parameters
    logs/        readers of other tools' logs

These modules are pure: no clock, no asyncio, and randomness only from a generator that is passed in. A driver for the
real clock needs only `engine_core` and a `latency.StepTime`.
"""
