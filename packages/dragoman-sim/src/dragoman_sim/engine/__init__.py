"""A simulation of vLLM without a GPU: its scheduler, its cache and its latency, on any
clock.

    config       limits of the scheduler             latency        duration of a step, speculative decoding
    hashing      block hashes, keyed random numbers  profile        hardware and model, as a file
    blocks       the pool and the prefix cache       disaggregation leases, transfers, vLLM's transfer parameters
    sequence     state of one request, the queue     offloading     KV cache in host memory, and the link to it
    scheduler    what each step computes             kv_events      KV events and transfer notifications
    engine_core  steps that take time                reply_*        what the simulated model answers
    rank         one data-parallel rank in real time engine         the engine that serves them
    faults       fault injection                     embedder       simulated embeddings and images

All modules except `engine`, `embedder`, `rank` and `kv_events` are pure: they use no
clock and no asyncio. A driver needs only `engine_core` and a `latency.StepTime`: `rank`
is the driver for the real clock, and `dragoman.simulation` has one for a virtual clock.
"""
