"""A simulation of vLLM without a GPU: its scheduler, its cache and its latency, on any clock.

    config       limits of the scheduler             latency        duration of a step
    hashing      hashes of block contents            profile        hardware and model, as a file
    blocks       the pool and the prefix cache       workload       requests of a trace; `synthetic` makes some
    sequence     state of one request                measurements   a log of timed requests
    waiting_queue  the queue                         windows        from a log and a replay to equations,
    scheduler    what each step computes             least_squares  which are solved here
    engine_core  steps that take time                fitting        until replay and log agree
    routing      which replica serves a request      calibrate      a profile, evaluated on held-out requests
    replay       a workload on a virtual clock       report         what a benchmark prints
    timing       when a request began and ended      fleet          replicas behind a router; how many are enough
    disaggregated_replay  prefill and decode pools   disaggregation leases, transfers, vLLM's transfer parameters
    logs/        readers of other tools' logs

These modules are pure: no clock, no asyncio, and randomness only from a generator that is passed in. A driver for the
real clock needs only `engine_core` and a `latency.StepTime`.
"""
