"""Every setting of the server, defined once: its type, its default, its bounds and what it is for.

Knows no command line library, no file and no environment; `sources` reads a server's settings from all of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .generation import GenerationConfig
from .option import Option, Secret
from .parts import ModelEntries, ModelEntry
from .simulator import SimulatorSettings

_MIB = 1024 * 1024


class Settings(SimulatorSettings, frozen=True, kw_only=True):
    """What a server was told. Where a value is None the model or the engine decides."""

    model: Annotated[
        str,
        Option(
            "Model",
            "What to serve: `tiny`, the model that comes with this package; a GGUF file; a directory with a model "
            "in safetensors, by the engine that fits (or `transformers:DIRECTORY`, `vllm:DIRECTORY`, `mlx:DIRECTORY`, "
            "`tiny:DIRECTORY`, `encoder:DIRECTORY`); `sim`, a vLLM without a GPU (see --profile); `scripted`, which "
            "says what a prompt's directives tell; "
            "`scripted:FILE`, which says what the FILE tells; or `http://HOST:PORT/v1`, another server that "
            "speaks OpenAI's API (several: with commas between them).",
        ),
    ] = "tiny"
    served_model_name: Annotated[
        tuple[str, ...], Option("Model", "The name clients know the model by. Can be repeated: the first is listed.")
    ] = ()
    max_model_len: Annotated[
        int | None, Option("Model", "Tokens that prompt and answer may have together.", least=1, sized=True)
    ] = None
    chat_template: Annotated[
        str | None, Option("Model", "A Jinja chat template instead of the model's own: a path, or the text itself.")
    ] = None
    trust_request_chat_template: Annotated[
        bool, Option("Model", "Let requests bring a chat template of their own. It runs in a sandbox.")
    ] = False
    tool_call_parser: Annotated[str | None, Option("Model", "How the model writes tool calls.")] = None
    reasoning_parser: Annotated[str | None, Option("Model", "How the model writes its reasoning.")] = None
    override_generation_config: Annotated[
        GenerationConfig,
        Option("Model", "Defaults of the requests, as JSON: '{\"temperature\": 0.2}'.", metavar="JSON"),
    ] = GenerationConfig()
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Option(
            "Model",
            "Numbers that torch or mlx compute with, and that llama.cpp keeps of a context; `auto` takes those of the "
            "checkpoint, or float16.",
        ),
    ] = "auto"
    device: Annotated[
        str, Option("Model", "Where torch computes: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes an accelerator.")
    ] = "auto"
    gpu_layers: Annotated[
        int,
        Option("Model", "Layers that llama.cpp keeps on a GPU; -1 are as many as it sees fit.", least=-1, most=100000),
    ] = -1
    mmproj: Annotated[
        str | None,
        Option(
            "Model",
            "The GGUF file with the projector of a model that sees, for llama.cpp. By default the one `mmproj*.gguf` "
            "beside the model; `none` leaves it out.",
            metavar="FILE",
        ),
    ] = None
    threads: Annotated[
        int | None, Option("Model", "Threads that llama.cpp computes with on a CPU.", least=1, most=1024)
    ] = None
    quantization: Annotated[
        Literal["bitsandbytes", "torchao"] | None,
        Option(
            "Model",
            "Quantise the weights of a transformers model while they are loaded: to four bits (`bitsandbytes`, NF4) or "
            "eight (`torchao`). Weights that are quantised already need no word.",
        ),
    ] = None
    attention_backend: Annotated[
        Literal["auto", "flash", "efficient", "cudnn", "math"],
        Option(
            "Model",
            "Which of torch's kernels computes the attention of a transformers model; `auto` lets torch choose for "
            "each step. One that cannot compute this model here is refused when it is loaded.",
        ),
    ] = "auto"
    trust_remote_code: Annotated[
        bool, Option("Model", "Run the Python code that lies in a model's directory, if transformers needs it.")
    ] = False
    vllm_args: Annotated[
        str | None,
        Option("Model", "More of what `vllm:` is told, by the names of its engine arguments.", metavar="JSON"),
    ] = None
    directives: Annotated[
        bool, Option("Model", "Let prompts tell `scripted` or `sim` what to say, by directives in double brackets.")
    ] = False
    upstream_model: Annotated[
        str | None, Option("Upstream", "Which of the upstream's models to serve; by default the first that it lists.")
    ] = None
    upstream_kind: Annotated[
        Literal["auto", "compatible", "openai", "vllm", "dragoman", "sglang", "llama.cpp"],
        Option("Upstream", "What the upstream can do beyond what all do; `auto` asks it."),
    ] = "auto"
    upstream_api_key: Annotated[
        tuple[Secret, ...],
        Option("Upstream", "The key to send upstream. Can be repeated: then one for each upstream, in their order."),
    ] = ()
    upstream_weight: Annotated[
        tuple[str, ...],
        Option("Upstream", "Shares of the upstreams, in their order, such as 2,1. By default they are equal."),
    ] = ()
    upstream_timeout: Annotated[
        float, Option("Upstream", "Seconds of silence after which an upstream has failed.", least=0.1, most=86400)
    ] = 600.0
    upstream_retries: Annotated[
        int,
        Option("Upstream", "How often another upstream is asked while nothing has been answered.", least=0, most=1000),
    ] = 2
    host: Annotated[str, Option("Server", "The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option("Server", "The port to listen on; 0 takes a free one.", least=0, most=65535)] = 8000
    uds: Annotated[str | None, Option("Server", "Listen on this Unix socket instead.", metavar="PATH")] = None
    max_body_bytes: Annotated[
        int, Option("Server", "Bytes that the body of a request may have.", least=1024, sized=True)
    ] = 32 * _MIB
    max_inflight_body_bytes: Annotated[
        int,
        Option(
            "Server",
            "Bytes that the bodies of all requests which are being read may have together; one alone may always have "
            "--max-body-bytes.",
            least=1024,
            sized=True,
        ),
    ] = 512 * _MIB
    keepalive_interval: Annotated[
        float, Option("Server", "Seconds of silence after which a stream gets a sign of life.", least=0.05, most=3600)
    ] = 5.0
    shutdown_timeout: Annotated[
        float,
        Option(
            "Server",
            "Seconds for which what runs goes on when the server is told to stop; then it is ended with an error.",
            least=0,
            most=86400,
        ),
    ] = 8.0
    shutdown_grace: Annotated[
        float,
        Option(
            "Server",
            "Seconds for which a server that is told to stop can still be reached, also if nothing runs: it says that "
            "it is not ready, so that a load balancer sends nothing more.",
            least=0,
            most=3600,
        ),
    ] = 0.0
    api_key: Annotated[
        tuple[Secret, ...], Option("Access", "A key that requests must carry. Can be repeated: each of them will do.")
    ] = ()
    admin_api_key: Annotated[
        tuple[Secret, ...], Option("Access", "A key that administration takes. Can be repeated.")
    ] = ()
    secret_key: Annotated[
        Secret | None,
        Option(
            "Access",
            "What reasoning that clients keep is sealed and signed with; several servers that share it read each "
            "other's. By default one is made and kept.",
        ),
    ] = None
    weights_dir: Annotated[
        str | None,
        Option(
            "Access",
            "Where administrators may have other weights read from while the model is served; by default they can only "
            "send them.",
            metavar="DIR",
        ),
    ] = None
    max_weights_bytes: Annotated[
        int, Option("Access", "Bytes that weights may have which are sent.", least=1024, sized=True)
    ] = 1024 * _MIB
    no_auth: Annotated[
        bool, Option("Access", "Listen on other addresses than this machine's own without a key.", flag="require-auth")
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option("Access", "A host name to answer for, besides localhost. Can be repeated.", metavar="HOST"),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Option(
            "Access",
            "A web site whose pages may ask this server from a browser (CORS), as `https://app.example`; `*` is every "
            "site. Can be repeated; by default none may.",
            metavar="ORIGIN",
        ),
    ] = ()
    max_num_seqs: Annotated[int | None, Option("Scheduling", "Sequences that run at the same time.", least=1)] = None
    max_num_batched_tokens: Annotated[
        int | None, Option("Scheduling", "Tokens of all sequences in one step.", least=1, sized=True)
    ] = None
    kv_cache_tokens: Annotated[
        int | None,
        Option("Scheduling", "Tokens that the KV cache holds, all sequences together.", least=1, sized=True),
    ] = None
    kv_offloading_dir: Annotated[
        str | None,
        Option(
            "Scheduling",
            "Keep keys and values of prompts in this directory too, so that they are found after a restart. For "
            "engines that compute in this process.",
            metavar="DIR",
        ),
    ] = None
    kv_offloading_bytes: Annotated[
        int, Option("Scheduling", "Bytes that they may take there.", least=1024, sized=True)
    ] = 16384 * _MIB
    enable_prefix_caching: Annotated[
        bool, Option("Scheduling", "Do not keep the beginning that several prompts share; compute it each time.")
    ] = True
    max_queued_requests: Annotated[
        int, Option("Scheduling", "Requests that may wait; the next one is told to come again.", least=0)
    ] = 2048
    max_queued_tokens: Annotated[
        int,
        Option("Scheduling", "Tokens of the prompts that may wait; one prompt alone always may.", least=1, sized=True),
    ] = 32 * _MIB
    step_timeout: Annotated[
        float,
        Option(
            "Scheduling",
            "Seconds that one step of a model may take; then it hangs: what waits for it fails, and the engine is "
            "started again.",
            least=1,
            most=86400,
        ),
    ] = 300.0
    api_profile: Annotated[
        Literal["openai", "vllm"] | None,
        Option("API", "Answer exactly as OpenAI does, or with the fields that vLLM adds (as `sim` does by itself)."),
    ] = None
    strict: Annotated[bool, Option("API", "Refuse parameters that would be ignored, instead of warning.")] = False
    explain: Annotated[
        bool,
        Option(
            "API",
            "Tell callers what became of their prompts: /v1/chat/completions/render and .../explain. The last prompts "
            "of each key are kept in memory for it.",
        ),
    ] = False
    drop_agent_nonces: Annotated[
        bool,
        Option(
            "API",
            "Keep what agents put in front of their prompts anew with every request (Claude Code's billing header), "
            "although no prefix is ever cached then.",
            flag="keep-agent-nonces",
        ),
    ] = True
    media_urls: Annotated[
        Literal["refuse", "fetch", "pass"],
        Option(
            "API",
            "What becomes of images and files that a request only names by an http(s) URL: `refuse`, `fetch` (by this "
            "server, from public addresses only) or `pass` (on to an upstream, which fetches what it likes).",
        ),
    ] = "refuse"
    media_hosts: Annotated[
        tuple[str, ...],
        Option(
            "API",
            "A host to fetch media from, as a name or a pattern (`*.example.com`), and no other. Can be repeated.",
            metavar="HOST",
        ),
    ] = ()
    max_logprobs: Annotated[
        int, Option("API", "Alternatives a token that a request may ask for.", least=0, most=1000)
    ] = 20
    reasoning_verification: Annotated[
        Literal["lenient", "strict", "off"],
        Option(
            "API",
            "Reasoning that comes back and is not this server's: `lenient` leaves it out, or takes its summary, and "
            "warns; `strict` refuses it; `off` does not look at signatures.",
        ),
    ] = "lenient"
    store: Annotated[
        str,
        Option(
            "Store",
            "Where responses, conversations, files and batches are kept: `sqlite` (a file among this user's state), "
            "`sqlite:PATH`, `postgresql://...`, `memory` (until the server ends) or `none`.",
        ),
    ] = "sqlite"
    store_ttl: Annotated[float, Option("Store", "Seconds for which something is kept after its last use.", least=1)] = (
        30 * 86400.0
    )
    store_max_records: Annotated[
        int, Option("Store", "How much is kept; the least recently used goes first.", least=1, sized=True)
    ] = 100_000
    store_max_bytes: Annotated[
        int, Option("Store", "Bytes that are kept; half of them may be files.", least=1024, sized=True)
    ] = 4096 * _MIB
    max_file_bytes: Annotated[int, Option("Store", "Bytes that an uploaded file may have.", least=1024, sized=True)] = (
        200 * _MIB
    )
    batch_concurrency: Annotated[
        int, Option("Scheduling", "Requests of batches that run at the same time, behind all others.", least=1)
    ] = 16
    store_synchronous: Annotated[
        Literal["full", "normal"],
        Option("Store", "Whether what is stored in SQLite survives a power cut (`full`), or only the server's end."),
    ] = "full"
    max_background: Annotated[
        int, Option("Store", "Responses that may run in the background; the next one is told to come again.", least=0)
    ] = 64
    log_level: Annotated[
        Literal["critical", "error", "warning", "info", "debug"],
        Option("Logging", "What to log.", vllm="uvicorn_log_level"),
    ] = "info"
    request_log: Annotated[
        str | None,
        Option(
            "Logging", "Append a line of JSON for each request that generates: its counts and times.", metavar="FILE"
        ),
    ] = None
    access_log: Annotated[bool, Option("Logging", "Do not log each request.", vllm="disable_uvicorn_access_log")] = True
    models: Annotated[
        ModelEntries,
        Option(
            "Server",
            "Several models by their names, as JSON or as a section of the file: each has settings of its own, and "
            "`aliases`, `ttl`, `pinned`, `memory`.",
            metavar="JSON",
        ),
    ] = ModelEntries()
    model_memory_limit: Annotated[
        int | None,
        Option("Server", "Bytes that the models which are not pinned may take together.", least=1, sized=True),
    ] = None
    lora_modules: Annotated[
        tuple[str, ...], Option("Model", "A LoRA adapter to serve besides. Can be repeated.", metavar="NAME=PATH")
    ] = ()
    config: Annotated[
        str | None,
        Option("Server", "A TOML or YAML file with any of these settings; keys are the names of the options."),
    ] = None

    def of(self, entry: ModelEntry) -> Settings:
        """Those of one of several models: its own, and these for the rest."""
        names = (entry.name, *entry.aliases)
        return msgspec.structs.replace(self, **dict(entry.told), served_model_name=names, models=ModelEntries())
