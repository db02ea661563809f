"""The settings of the server, each defined once with its type, default, bounds and help
text.

The settings of the HTTP API are in `serving`; each engine has its own ones beside its
`EngineSpec`. `sources` reads the values.

The modules of settings do not postpone the evaluation of annotations: every command
reads those of all settings, and as strings it would have to compile each of them first.
"""

from typing import Annotated, Any, Literal, Self, TypeVar

import msgspec
from msgspec import Struct

from .engine_settings import load_engine_settings
from .option import MIB, Option
from .sections import GenerationConfig, ModelEntries, ModelEntry, RaySettings
from .vllm import VllmSettings

EngineSettings = TypeVar("EngineSettings", bound=Struct)


class Settings(VllmSettings, frozen=True, kw_only=True):
    """The settings of a server. None means that the model or the engine decides."""

    model: Annotated[
        str,
        Option(
            "Model",
            "What to serve: `tiny` (the embedded model); `org/name`, a model of the Hugging Face "
            "hub, which is "
            "downloaded (`org/name:QUANT` for a GGUF file, `org/name@REVISION`); a GGUF file; a "
            "directory of "
            "safetensors. The engine that fits loads it, or the one named (`transformers:MODEL`, "
            "`vllm:MODEL`, "
            "`mlx:MODEL`, `tiny:MODEL`, `encoder:MODEL`, `gguf:MODEL`). Further: `sim`, a "
            "simulated vLLM that needs no "
            "GPU (see --profile); `scripted` or `scripted:FILE`, which replies as directives in "
            "the prompt or a "
            "script file specify; `http://HOST:PORT/v1`, another OpenAI-compatible server "
            "(comma-separated for "
            "several); or `python:MODULE:FACTORY`, your own engine.",
        ),
    ] = "tiny"
    revision: Annotated[
        str | None,
        Option("Model", "Branch, tag or commit of a model of the hub; `main` by default."),
    ] = None
    served_model_name: Annotated[
        tuple[str, ...],
        Option(
            "Model",
            "Model name in the API. Repeatable: the first name is used in responses, the others "
            "are aliases.",
        ),
    ] = ()
    max_model_len: Annotated[
        int | None,
        Option(
            "Model",
            "Maximum context length in tokens, prompt and output together.",
            minimum=1,
            allows_size_suffix=True,
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        Option(
            "Model",
            "Jinja chat template, as a path or inline, instead of the model's own.",
        ),
    ] = None
    trust_request_chat_template: Annotated[
        bool,
        Option(
            "Model",
            "Accept chat templates in requests. They run in a sandbox.",
        ),
    ] = False
    tool_call_parser: Annotated[
        str | None,
        Option(
            "Model",
            "Parser for the model's tool calls. By default detected from the chat template.",
        ),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        Option(
            "Model",
            "Parser for the model's reasoning. By default detected from the chat template.",
        ),
    ] = None
    override_generation_config: Annotated[
        GenerationConfig,
        Option(
            "Model",
            "Default sampling parameters, as JSON: '{\"temperature\": 0.2}'.",
            metavar="JSON",
        ),
    ] = GenerationConfig()
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Option(
            "Model",
            "Data type for model weights and activations (torch, mlx) or for the KV cache "
            "(llama.cpp); `auto` "
            "uses the checkpoint's, or float16 for llama.cpp.",
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        Option(
            "Model",
            "Number of CPU threads for computation; by default all cores that the process may "
            "use, or one for `tiny` "
            "and `encoder`.",
            minimum=1,
            maximum=1024,
        ),
    ] = None
    trust_remote_code: Annotated[
        bool,
        Option(
            "Model",
            "Allow transformers to run Python code from the model directory.",
        ),
    ] = False
    directives: Annotated[
        bool,
        Option(
            "Model",
            "Enable directives in prompts ([[...]]) that control the replies of `scripted` and "
            "`sim`.",
        ),
    ] = False
    host: Annotated[str, Option("Server", "Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Option("Server", "Port to listen on; 0 picks a free port.", minimum=0, maximum=65535)
    ] = 8000
    uds: Annotated[
        str | None,
        Option(
            "Server", "Listen on this Unix domain socket instead of a TCP port.", metavar="PATH"
        ),
    ] = None
    uds_mode: Annotated[
        str,
        Option(
            "Server",
            "Permissions of the Unix socket, in octal: 600 (owner only), 660 (and group).",
            metavar="MODE",
        ),
    ] = "600"
    ssl_certfile: Annotated[
        str | None,
        Option(
            "Server",
            "Certificate chain in PEM, to serve HTTPS; read again on SIGHUP. Needs --ssl-keyfile.",
            metavar="FILE",
        ),
    ] = None
    ssl_keyfile: Annotated[
        str | None,
        Option(
            "Server", "Private key of the certificate, in PEM without a password.", metavar="FILE"
        ),
    ] = None
    workers: Annotated[
        int,
        Option(
            "Server",
            "Number of processes that serve the port. With upstreams, `scripted`, `sim`, `tiny` "
            "and encoders each has "
            "its own engine; with transformers, mlx-lm and llama.cpp all share one engine "
            "process. Limits of "
            "connections, queues and bodies apply to each.",
            minimum=1,
            maximum=1024,
        ),
    ] = 1
    api_server_count: Annotated[
        int | None,
        Option(
            "Server",
            "Number of processes that serve the port in front of one engine process (vLLM's "
            "option). As --workers with "
            "an engine that exists once, and for `tiny` too.",
            minimum=1,
            maximum=1024,
        ),
    ] = None
    max_connections: Annotated[
        int,
        Option(
            "Server",
            "Maximum open connections; more are rejected with 503 and `Retry-After`.",
            minimum=1,
        ),
    ] = 16384
    max_connections_per_address: Annotated[
        int,
        Option(
            "Server", "Maximum open connections from one address other than loopback.", minimum=1
        ),
    ] = 4096
    keepalive_interval: Annotated[
        float,
        Option(
            "Server",
            "Seconds between keep-alive events on an idle stream.",
            minimum=0.05,
            maximum=3600,
        ),
    ] = 5.0
    shutdown_timeout: Annotated[
        float,
        Option(
            "Server",
            "Seconds to let running requests finish on shutdown; then they end with an error.",
            minimum=0,
            maximum=86400,
        ),
    ] = 8.0
    shutdown_grace: Annotated[
        float,
        Option(
            "Server",
            "Minimum seconds to keep listening on shutdown, with /health returning 503, so that "
            "load balancers "
            "stop sending requests.",
            minimum=0,
            maximum=3600,
        ),
    ] = 0.0
    keys_file: Annotated[
        str | None,
        Option(
            "Access",
            "YAML file of named API keys with their roles, models, limits and budgets, as "
            "`dragoman keys` writes it. "
            "It contains hashes, no keys, and is read again when it changes.",
            metavar="FILE",
        ),
    ] = None
    tools_file: Annotated[
        str | None,
        Option(
            "Access",
            "YAML file of the MCP servers whose tools this server calls, and of the URLs of MCP "
            "servers that clients may name. By default tools of type `mcp` are rejected.",
            metavar="FILE",
        ),
    ] = None
    hosted_tool: Annotated[
        tuple[str, ...],
        Option(
            "Access",
            "A hosted tool of Responses and Messages and the tool that runs it here: `web_search`, "
            "`code_interpreter`, or for Responses only `file_search`, `image_generation` or "
            "`shell`; an MCP server of --tools-file and its tool. Repeatable; by "
            "default hosted tools are left out with a warning.",
            metavar="KIND=mcp:LABEL[/TOOL]",
        ),
    ] = ()
    limits_store: Annotated[
        str,
        Option(
            "Access",
            "Where the limits of named keys are counted: `memory` (each process for itself), "
            "`store` (in the database "
            "of `--store`, for all processes that use it), `sqlite:PATH`, `postgresql://...` or "
            "`redis://...`; `auto` "
            "is `store` if that is SQLite or PostgreSQL, else `memory`.",
        ),
    ] = "auto"
    secret_key: Annotated[
        str | None,
        Option(
            "Access",
            "Secret that encrypts and signs the reasoning returned to clients. Servers with the "
            "same secret "
            "accept each other's. By default generated and stored in the state directory.",
            is_secret=True,
        ),
    ] = None
    no_auth: Annotated[
        bool,
        Option(
            "Access", "Allow a non-loopback address without an API key.", off_flag="require-auth"
        ),
    ] = False
    allowed_origins: Annotated[
        tuple[str, ...],
        Option(
            "Access",
            "Origin allowed to call the API from a browser (CORS), such as `https://app.example`; "
            "`*` allows "
            "all. Repeatable; CORS is off by default.",
            metavar="ORIGIN",
        ),
    ] = ()
    ui: Annotated[
        bool | None,
        Option(
            "Server",
            "Serve the web page at /ui: chat, tokens, raw events, live metrics. On by default if "
            "the server listens "
            "on a loopback address.",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        Option(
            "Scheduling",
            "Maximum number of sequences running at the same time; for upstreams, scripts and "
            "plug-ins: of requests.",
            minimum=1,
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Option(
            "Scheduling",
            "Maximum number of tokens per step, over all sequences.",
            minimum=1,
            allows_size_suffix=True,
        ),
    ] = None
    kv_cache_tokens: Annotated[
        int | None,
        Option(
            "Scheduling",
            "Size of the KV cache in tokens, over all sequences.",
            minimum=1,
            allows_size_suffix=True,
        ),
    ] = None
    kv_offloading_dir: Annotated[
        str | None,
        Option(
            "Scheduling",
            "Also store KV cache blocks of prompts in this directory, so that they survive a "
            "restart. Only for "
            "engines that run in this process.",
            metavar="DIR",
        ),
    ] = None
    kv_offloading_bytes: Annotated[
        int,
        Option(
            "Scheduling",
            "Maximum size of the KV offloading directory, in bytes.",
            minimum=1024,
            allows_size_suffix=True,
        ),
    ] = 16384 * MIB
    enable_prefix_caching: Annotated[
        bool,
        Option(
            "Scheduling",
            "Disable prefix caching, so that shared prompt prefixes are computed for every "
            "request.",
        ),
    ] = True
    max_queued_requests: Annotated[
        int,
        Option(
            "Scheduling",
            "Maximum queue length; beyond it requests get 503 with Retry-After.",
            minimum=0,
        ),
    ] = 2048
    max_queued_tokens: Annotated[
        int,
        Option(
            "Scheduling",
            "Maximum number of prompt tokens in the queue; a single prompt is always accepted.",
            minimum=1,
            allows_size_suffix=True,
        ),
    ] = 32 * MIB
    step_timeout: Annotated[
        float,
        Option(
            "Scheduling",
            "Seconds that one step of a model may take. After that its requests fail and the "
            "engine restarts.",
            minimum=1,
            maximum=86400,
        ),
    ] = 300.0
    worker_timeout: Annotated[
        float,
        Option(
            "Scheduling",
            "Seconds of CPU time that a worker process may take to compile a grammar, or to "
            "render a template of a "
            "request, before it is killed.",
            minimum=0.05,
            maximum=3600,
        ),
    ] = 2.0
    worker_memory: Annotated[
        int,
        Option(
            "Scheduling",
            "Bytes that a worker process may allocate for that.",
            minimum=16 * MIB,
            allows_size_suffix=True,
        ),
    ] = 512 * MIB
    api_profile: Annotated[
        Literal["openai", "vllm"] | None,
        Option(
            "API",
            "Response format: exactly OpenAI's, or with vLLM's extra fields (the default for "
            "`sim`).",
        ),
    ] = None
    media_urls: Annotated[
        Literal["refuse", "fetch", "pass"],
        Option(
            "API",
            "How to handle images and files given as http(s) URLs: `refuse`; `fetch` them from "
            "this server, "
            "public addresses only; or `pass` the URL to the upstream.",
        ),
    ] = "refuse"
    media_hosts: Annotated[
        tuple[str, ...],
        Option(
            "API",
            "Host, or pattern such as `*.example.com`, that media may be fetched from; all others "
            "are refused. "
            "Repeatable.",
            metavar="HOST",
        ),
    ] = ()
    store: Annotated[
        str,
        Option(
            "Store",
            "Storage for responses, conversations, files and batches: `sqlite` (in the state "
            "directory), "
            "`sqlite:PATH`, `postgresql://...`, `memory` (lost on exit) or `none`.",
        ),
    ] = "sqlite"
    store_ttl: Annotated[
        float,
        Option("Store", "Seconds until a stored object expires after its last use.", minimum=1),
    ] = 30 * 86400.0
    store_max_records: Annotated[
        int,
        Option(
            "Store",
            "Maximum number of stored objects; the least recently used of the API key with the "
            "most are evicted first.",
            minimum=1,
            allows_size_suffix=True,
        ),
    ] = 100_000
    store_max_bytes: Annotated[
        int,
        Option(
            "Store",
            "Maximum size of the store, in bytes; files may use half of it.",
            minimum=1024,
            allows_size_suffix=True,
        ),
    ] = 4096 * MIB
    store_synchronous: Annotated[
        Literal["full", "normal"],
        Option(
            "Store",
            "SQLite durability: writes survive a power failure (`full`), or only a crash of the "
            "server (`normal`).",
        ),
    ] = "full"
    log_level: Annotated[
        Literal["critical", "error", "warning", "info", "debug"],
        Option("Logging", "Minimum level of log messages.", vllm_name="uvicorn_log_level"),
    ] = "info"
    request_log: Annotated[
        str | None,
        Option(
            "Logging",
            "Append a JSON line with token counts and timings for each generation request.",
            metavar="FILE",
        ),
    ] = None
    otlp_endpoint: Annotated[
        str | None,
        Option(
            "Logging",
            "Send OpenTelemetry traces and metrics to this OTLP/HTTP receiver, such as "
            "http://127.0.0.1:4318; by "
            "default OTEL_EXPORTER_OTLP_ENDPOINT, or nowhere.",
            metavar="URL",
            vllm_name="otlp_traces_endpoint",
        ),
    ] = None
    trace_sample_ratio: Annotated[
        float,
        Option(
            "Logging",
            "Share of traces to record, from 0 to 1, of requests without `traceparent`; those "
            "with one follow it.",
            minimum=0,
            maximum=1,
            metavar="SHARE",
        ),
    ] = 1.0
    models: Annotated[
        ModelEntries,
        Option(
            "Server",
            "Several models by name, as JSON or as a section of the configuration file. Each has "
            "its own "
            "settings, and `aliases`, `ttl`, `pinned` and `memory`.",
            metavar="JSON",
        ),
    ] = ModelEntries()
    model_memory_limit: Annotated[
        int | None,
        Option(
            "Server",
            "Maximum total size of the loaded models that are not pinned, in bytes.",
            minimum=1,
            allows_size_suffix=True,
        ),
    ] = None
    lora_modules: Annotated[
        tuple[str, ...],
        Option(
            "Model",
            "LoRA adapter to serve: a directory or `org/name`. Repeatable.",
            metavar="NAME=PATH",
        ),
    ] = ()
    ray: Annotated[
        RaySettings,
        Option(
            "Server",
            "Replicas, autoscaling and routing of `dragoman deploy`, as JSON or as a section of "
            "the configuration "
            "file; other commands ignore it. See docs/ray.md.",
            metavar="JSON",
        ),
    ] = RaySettings()
    config: Annotated[
        str | None,
        Option("Server", "TOML or YAML configuration file; its keys are the option names."),
    ] = None

    engine_settings: tuple[Struct, ...] = ()
    """The settings of installed engines, at most one struct of each of their types."""
    notices: tuple[str, ...] = ()
    """What the command line contains without an effect; logged at the start."""
    information: tuple[str, ...] = ()
    """What else the command line implies; printed with the greeting."""

    @property
    def is_multiprocess(self) -> bool:
        """Whether a supervisor process starts the processes that serve the port."""
        return self.workers > 1 or self.api_server_count is not None

    def of(self, kind: type[EngineSettings]) -> EngineSettings:
        """Return an engine's own settings.

        Args:
            kind: their type.
        """
        return next((item for item in self.engine_settings if isinstance(item, kind)), kind())

    def get(self, name: str) -> object:
        """Return a setting of the server, or of an installed engine, by its name."""
        if name in self.__struct_fields__:
            return getattr(self, name)
        return getattr(self.of(_find_owner(name)), name)

    def replace(self, **values: Any) -> Self:  # noqa: ANN401 - each has its own type
        """Return these settings with other values, also of installed engines' settings."""
        own = {name: value for name, value in values.items() if name in self.__struct_fields__}
        settings = msgspec.structs.replace(self, **own)
        by_owner: dict[type[Struct], dict[str, Any]] = {}
        for name in values.keys() - own.keys():
            by_owner.setdefault(_find_owner(name), {})[name] = values[name]
        for kind, changes in by_owner.items():
            changed = msgspec.structs.replace(settings.of(kind), **changes)
            others = (item for item in settings.engine_settings if not isinstance(item, kind))
            settings = msgspec.structs.replace(settings, engine_settings=(*others, changed))
        return settings

    def for_entry(self, entry: ModelEntry) -> Self:
        """Return the settings of one of several models: these settings with its
        overrides.
        """
        names = (entry.name, *entry.aliases)
        overrides = dict(entry.overrides)
        return self.replace(**overrides, served_model_name=names, models=ModelEntries())


def _find_owner(name: str) -> type[Struct]:
    """Return the type of engine settings that has a field of this name."""
    return next(kind for kind in load_engine_settings() if name in kind.__struct_fields__)
