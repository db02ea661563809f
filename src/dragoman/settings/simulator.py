"""What a simulated vLLM is told; some of it a real one is told as well."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from .model_entries import Instances
from .option import Option


class SimulatorSettings(Struct, frozen=True, kw_only=True):
    """What `sim` is told. Where a value is None the profile decides."""

    profile: Annotated[
        str | None,
        Option("Simulator", "Hardware and model: the name of a shipped profile, or a file's path.", metavar="PROFILE"),
    ] = None
    tokenizer: Annotated[
        str | None, Option("Simulator", "A model's directory, or a tokenizer.json, to count in.", metavar="PATH")
    ] = None
    time_scale: Annotated[
        float, Option("Simulator", "How fast time passes: 10 is ten times as fast.", minimum=0.001, metavar="FACTOR")
    ] = 1.0
    warm_up: Annotated[
        float, Option("Simulator", "Seconds after the start until it is ready.", minimum=0, maximum=3600)
    ] = 0.0
    block_size: Annotated[int | None, Option("Simulator", "Tokens of a block of the KV cache.", minimum=1)] = None
    num_gpu_blocks_override: Annotated[
        int | None, Option("Simulator", "Blocks of the KV cache, instead of what the profile has.", minimum=2)
    ] = None
    enable_chunked_prefill: Annotated[bool, Option("Simulator", "Compute each prompt in one piece.")] = True
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"] | None, Option("Simulator", "Who runs first: first come, or the lowest priority.")
    ] = None
    data_parallel_size: Annotated[
        int, Option("Simulator", "Copies of the engine that share the requests.", minimum=1, maximum=1024)
    ] = 1
    instances: Annotated[
        Instances,
        Option(
            "Simulator",
            "Several simulated servers in this process, each on the next port: how many, or as JSON or as a section of "
            "the file a list with the settings of each that are its own (and `count`).",
            metavar="N|JSON",
        ),
    ] = Instances()
    kv_events_config: Annotated[
        str | None,
        Option("Simulator", "Publish what the prefix cache holds, over ZeroMQ: vLLM's JSON.", metavar="JSON"),
    ] = None
    kv_transfer_config: Annotated[
        str | None,
        Option("Simulator", "Prefill for other instances, or decode what they prefilled: vLLM's JSON.", metavar="JSON"),
    ] = None
    seed: Annotated[int, Option("Simulator", "Where chance begins: the same seed, the same server.")] = 0
    sim_mode: Annotated[
        Literal["random", "echo"], Option("Simulator", "Say words at random, or what the last message says.")
    ] = "random"
    sim_replies: Annotated[
        str | None, Option("Simulator", "A script of replies, as `scripted:FILE` takes it.", metavar="FILE")
    ] = None
    sim_dataset: Annotated[
        str | None, Option("Simulator", "Recorded replies: JSON lines of `prompt` and `reply`.", metavar="FILE")
    ] = None
    sim_output_tokens: Annotated[
        str,
        Option(
            "Simulator",
            "Lengths of answers: a number, uniform:LEAST,MOST or lognormal:MEDIAN,SIGMA.",
            metavar="LENGTHS",
        ),
    ] = "lognormal:128,0.6"
    sim_reasoning_tokens: Annotated[
        str, Option("Simulator", "Lengths of thoughts, written likewise.", metavar="LENGTHS")
    ] = "lognormal:48,0.5"
    sim_tool_calls: Annotated[
        float,
        Option("Simulator", "How probable a call is where tools may be called.", minimum=0, maximum=1, metavar="SHARE"),
    ] = 0.5
    sim_reasoning: Annotated[
        float,
        Option("Simulator", "How probable a thought is where nobody decides.", minimum=0, maximum=1, metavar="SHARE"),
    ] = 0.0
    sim_embedding_size: Annotated[int, Option("Simulator", "Numbers of an embedding.", minimum=1, maximum=16384)] = 1024
    sim_faults: Annotated[str | None, Option("Simulator", "A plan of failures, in YAML or JSON.", metavar="FILE")] = (
        None
    )
