"""A vLLM without a GPU: its scheduler, its cache and its times, on whatever clock the driver has.

    config       what the scheduler may do           latency        how long a step takes
    hashing      what a block holds                  profile        hardware and model, as a file
    blocks       the pool and the prefix cache       workload       requests of a trace; `synthetic` makes some
    sequence     one request on its way              measured       a log of requests that were timed
    waiting      the queue                           windows        from a log and a replay to equations,
    scheduler    who computes what in a step         least_squares  which are solved here
    engine_core  steps that take time                fitting        until replay and log agree
    routing      which replica serves a request      calibrate      a profile, judged on what was held out
    replay       a workload on a virtual clock       report         what a benchmark prints
    timing       when a request began and ended      fleet          replicas behind a router; how many are enough
    split        prefill and decode pools            disaggregation kept blocks, transfers, what vLLM says of them
    logs/        what other tools write of measured requests

Everything here is pure: no clock, no asyncio, and chance only from a generator that is passed in. A driver for the
real clock needs `engine_core` and a `latency.StepTime` and nothing else.
"""
