"""The settings of `serve sim` beside those of the server."""

from typing import Annotated, Literal

from msgspec import Struct

from dragoman.settings.option import Option


class SimulatorSettings(Struct, frozen=True, kw_only=True):
    """Settings of the `sim` engine. None means that the profile decides."""

    profile: Annotated[
        str | None,
        Option(
            "Simulator",
            "Hardware and model profile: the name of a built-in profile, or a file.",
            metavar="PROFILE",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Option(
            "Simulator",
            "Tokenizer for token counts: a model directory, a tokenizer.json, or a model of the "
            "hub (`org/name`).",
            metavar="PATH",
        ),
    ] = None
    time_scale: Annotated[
        float,
        Option(
            "Simulator",
            "Speed of simulated time: 10 is ten times as fast.",
            minimum=0.001,
            metavar="FACTOR",
        ),
    ] = 1.0
    warm_up: Annotated[
        float,
        Option(
            "Simulator",
            "Seconds from startup until the server is ready.",
            minimum=0,
            maximum=3600,
        ),
    ] = 0.0
    enable_lora: Annotated[
        bool,
        Option(
            "Simulator",
            "Accepted for compatibility with vLLM; adapters are enabled by --lora-modules.",
        ),
    ] = False
    max_loras: Annotated[
        int | None,
        Option(
            "Simulator",
            "Maximum number of LoRA adapters that run at once; 1 by default.",
            minimum=1,
        ),
    ] = None
    max_num_active_seqs: Annotated[
        int | None,
        Option(
            "Simulator",
            "Maximum number of requests that run at once, up to --max-num-seqs.",
            minimum=1,
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        Option(
            "Simulator",
            "Maximum prompt tokens of a request per step, unless it is alone; 0 is no limit.",
            minimum=0,
        ),
    ] = None
    long_prefill_token_threshold_adaptive: Annotated[
        bool,
        Option(
            "Simulator",
            "Raise --long-prefill-token-threshold to max-num-batched-tokens / number of requests.",
        ),
    ] = False
    async_scheduling: Annotated[
        bool,
        Option(
            "Simulator",
            "Disable asynchronous scheduling: a step is scheduled when the previous one ends.",
        ),
    ] = True
    scheduler_reserve_full_isl: Annotated[
        bool,
        Option(
            "Simulator",
            "Admit a request as soon as the first chunk of its prompt fits into the KV cache.",
        ),
    ] = True
    watermark: Annotated[
        float | None,
        Option(
            "Simulator",
            "Fraction of the KV cache that stays free when a request is admitted.",
            minimum=0,
            maximum=1,
            metavar="SHARE",
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int | None,
        Option(
            "Simulator",
            "Number of devices that share every layer; must match the profile.",
            minimum=1,
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        Option(
            "Simulator",
            "Number format of keys and values, such as fp8, which has twice the blocks.",
            metavar="FORMAT",
        ),
    ] = None
    disable_hybrid_kv_cache_manager: Annotated[
        bool,
        Option(
            "Simulator",
            "Keep all keys and values of layers with a sliding window too.",
            off_flag="enable-hybrid-kv-cache-manager",
        ),
    ] = False
    prefix_cache_retention_interval: Annotated[
        int | None,
        Option(
            "Simulator",
            "Tokens between the prefixes that sliding windows and states keep cached, beside the "
            "end of each prompt; 0 keeps no others.",
            minimum=0,
            metavar="TOKENS",
        ),
    ] = None
    sim_acceptance_rates: Annotated[
        str | None,
        Option(
            "Simulator",
            "Share of the drafts whose first, second, ... token is accepted; 0.75,0.6,0.5 by "
            "default.",
            metavar="RATES",
        ),
    ] = None
    kv_offloading_size: Annotated[
        float | None,
        Option(
            "Simulator",
            "Host memory of each engine core for keys and values that leave its GPUs' cache, in "
            "GiB.",
            metavar="GIB",
        ),
    ] = None
    kv_offloading_backend: Annotated[
        str,
        Option("Simulator", "KV offloading backend; only `native` is simulated."),
    ] = "native"
    prefix_caching_hash_algo: Annotated[
        Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "sha256_cbor_64bit"],
        Option(
            "Simulator",
            "Algorithm of vLLM that hashes the blocks of KV events; sha256_cbor_64bit is of vLLM "
            "0.10.",
        ),
    ] = "sha256"
    hash_seed: Annotated[
        str | None,
        Option(
            "Simulator",
            "Seed of these hashes, as vLLM's PYTHONHASHSEED, which it is by default.",
            metavar="SEED",
        ),
    ] = None
    sim_mode: Annotated[
        Literal["random", "echo"],
        Option(
            "Simulator",
            "Content of replies: random words, or an echo of the last message.",
        ),
    ] = "random"
    sim_replies: Annotated[
        str | None,
        Option(
            "Simulator",
            "Script of replies, in the format of `scripted:FILE`.",
            metavar="FILE",
        ),
    ] = None
    sim_dataset: Annotated[
        str | None,
        Option(
            "Simulator",
            "Recorded replies, as JSON Lines of `prompt` and `reply`.",
            metavar="FILE",
        ),
    ] = None
    sim_output_tokens: Annotated[
        str,
        Option(
            "Simulator",
            "Distribution of output lengths in tokens: a number, uniform:MIN,MAX or "
            "lognormal:MEDIAN,SIGMA.",
            metavar="LENGTHS",
        ),
    ] = "lognormal:128,0.6"
    sim_reasoning_tokens: Annotated[
        str,
        Option(
            "Simulator",
            "Distribution of reasoning lengths in tokens, in the same format.",
            metavar="LENGTHS",
        ),
    ] = "lognormal:48,0.5"
    sim_tool_calls: Annotated[
        float,
        Option(
            "Simulator",
            "Probability of a tool call when the request allows one.",
            minimum=0,
            maximum=1,
            metavar="SHARE",
        ),
    ] = 0.5
    sim_reasoning: Annotated[
        float,
        Option(
            "Simulator",
            "Probability of reasoning when the request does not specify it.",
            minimum=0,
            maximum=1,
            metavar="SHARE",
        ),
    ] = 0.0
    sim_image_tokens: Annotated[
        int,
        Option(
            "Simulator",
            "Accept images, each as this many tokens of the prompt; 0 rejects them.",
            minimum=0,
        ),
    ] = 0
    sim_embedding_size: Annotated[
        int,
        Option(
            "Simulator",
            "Number of embedding dimensions.",
            minimum=1,
            maximum=16384,
        ),
    ] = 1024
    global_cache_hit_threshold: Annotated[
        float,
        Option(
            "Simulator",
            "Least share of a prompt that must be cached, unless the request sets "
            "cache_hit_threshold; with less it ends with cache_threshold.",
            minimum=0,
            maximum=1,
            metavar="SHARE",
        ),
    ] = 0.0
    sim_faults: Annotated[
        str | None,
        Option("Simulator", "Fault injection plan, in YAML or JSON.", metavar="FILE"),
    ] = None
