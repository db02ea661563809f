"""Settings of vLLM's scheduler, for a real one and for engines that simulate it."""

from typing import Annotated, Literal

from .option import Option
from .sections import Instances
from .serving import ServingSettings


# A struct cannot have two bases with fields, so these settings continue those of the
# HTTP API.
class VllmSettings(ServingSettings, frozen=True, kw_only=True):
    """Settings under vLLM's names. None means that the engine decides."""

    block_size: Annotated[
        int | None,
        Option("vLLM", "KV cache block size in tokens.", minimum=1),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None,
        Option(
            "vLLM",
            "Number of KV cache blocks, instead of the profile's.",
            minimum=2,
        ),
    ] = None
    enable_chunked_prefill: Annotated[
        bool,
        Option(
            "vLLM",
            "Disable chunked prefill, so that each prompt is computed in a single step.",
        ),
    ] = True
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"] | None,
        Option(
            "vLLM",
            "Scheduling policy: first come first served, or lowest priority value first.",
        ),
    ] = None
    speculative_config: Annotated[
        str | None,
        Option(
            "vLLM",
            "Speculative decoding, in vLLM's JSON format: method, num_speculative_tokens, ...",
            metavar="JSON",
        ),
    ] = None
    data_parallel_size: Annotated[
        int | None,
        Option(
            "vLLM",
            "Number of data-parallel engine replicas; 1, or that of the profile, by default.",
            minimum=1,
            maximum=1024,
        ),
    ] = None
    instances: Annotated[
        Instances,
        Option(
            "Server",
            "Run several simulated servers in this process, on consecutive ports: a number, or a "
            "list of "
            "per-instance settings (and `count`) as JSON or as a section of the configuration "
            "file.",
            metavar="N|JSON",
        ),
    ] = Instances()
    kv_events_config: Annotated[
        str | None,
        Option(
            "vLLM",
            "Publish KV cache events over ZeroMQ, in vLLM's JSON format.",
            metavar="JSON",
        ),
    ] = None
    kv_transfer_config: Annotated[
        str | None,
        Option(
            "vLLM",
            "KV transfer for disaggregated prefill and decode, in vLLM's JSON format.",
            metavar="JSON",
        ),
    ] = None
    seed: Annotated[int, Option("vLLM", "Random seed.")] = 0
