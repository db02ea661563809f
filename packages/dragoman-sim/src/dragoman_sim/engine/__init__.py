"""A simulation of vLLM without a GPU: its scheduler, its cache and its latency, on any
clock.

    scheduler_config      limits of the scheduler
    block_hashes          hashes of vLLM's prefix cache
    block_pool            the blocks, and the prefix cache in them
    sequence              state of one request
    scheduler             what each step computes
    engine_core           steps that take time
    latency               duration of a step
    speculative_decoding  acceptance of drafted tokens
    profile               hardware and model, as a file
    kv_transfers          leases and transfers between prefill and decode
    kv_offloading         KV cache in host memory, and the link to it
    kv_events             KV events, which kv_publisher sends
    reply_generator       what the simulated model answers
    fault_injection       planned errors, delays and crashes
    data_parallel_rank    one data-parallel rank in real time
    engine                the engine that serves them
    embedder              simulated embeddings

All modules except `engine`, `embedder`, `kv_notices`, `kv_publisher` and `timer_queue`
are pure: they use no clock and no asyncio. A driver needs only `engine_core` and a
`latency.StepTime`: `data_parallel_rank` is the driver for the real clock, and
`dragoman_sim.lab` has one for a virtual clock.
"""
