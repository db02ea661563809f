"""A vLLM without a GPU: its scheduler, its cache and its times, on whatever clock the driver has.

    config      what the scheduler may do               latency     how long a step takes
    hashing     what a block holds                      profile     hardware and model, as a file
    blocks      the pool and the prefix cache           workload    requests, read or made
    sequence    one request on its way                  replay      a workload on a virtual clock
    scheduler   who computes how much in a step         calibrate   measured requests to a profile
    engine_core steps, their ends, who got a token      report      what a benchmark prints

Everything here is pure: no clock, no asyncio, and chance only from a generator that is passed in.
"""
