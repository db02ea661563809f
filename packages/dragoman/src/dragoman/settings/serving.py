"""Settings that the HTTP API uses unchanged."""

from typing import Annotated, Literal

from msgspec import Struct

from .option import MIB, Option


class ServingSettings(Struct, frozen=True, kw_only=True):
    """Settings of the HTTP API. `serving.service.ServingOptions` inherits them, and
    adds computed options.
    """

    max_body_bytes: Annotated[
        int,
        Option(
            "Server",
            "Maximum size of a request body, in bytes.",
            minimum=1024,
            allows_size_suffix=True,
        ),
    ] = 32 * MIB
    max_inflight_body_bytes: Annotated[
        int,
        Option(
            "Server",
            "Maximum total size of request bodies being read, in bytes; a single body of up to "
            "--max-body-bytes "
            "is always accepted.",
            minimum=1024,
            allows_size_suffix=True,
        ),
    ] = 512 * MIB
    request_timeout: Annotated[
        float | None,
        Option(
            "Server",
            "Seconds after which a generation that has not finished fails with a timeout; a "
            "client may ask for less "
            "with the header `x-dragoman-timeout`. By default there is no deadline.",
            minimum=0.05,
            maximum=86400,
        ),
    ] = None
    close_at_limit: Annotated[
        bool,
        Option(
            "Server",
            "Spend the last tokens within `max_tokens` on a legal ending of a constrained answer, "
            "so that its JSON is "
            "valid; requests override it with `structured_outputs.close_at_limit`.",
        ),
    ] = False
    enable_per_request_metrics: Annotated[
        bool,
        Option(
            "Server",
            "Add `metrics` (milliseconds in the queue, to the first token, between tokens) to "
            "Chat and Completions "
            "answers with one choice, in a stream to its usage chunk.",
        ),
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool,
        Option(
            "Server",
            "Represent the tokens in the logprobs of Chat and Completions as `token_id:ID` unless "
            "the request has "
            "`return_tokens_as_token_ids`.",
        ),
    ] = False
    progress_timeout: Annotated[
        float,
        Option(
            "Server",
            "Seconds without any event of a model, while requests run on it, after which "
            "`/health` returns 503.",
            minimum=1,
            maximum=86400,
        ),
    ] = 600.0
    api_key: Annotated[
        tuple[str, ...],
        Option(
            "Access",
            "API key that clients must send. Repeatable: any of them is accepted.",
            is_secret=True,
        ),
    ] = ()
    admin_api_key: Annotated[
        tuple[str, ...],
        Option("Access", "API key for administrative endpoints. Repeatable.", is_secret=True),
    ] = ()
    weights_dir: Annotated[
        str | None,
        Option(
            "Access",
            "Directory from which administrators may load new weights at run time; by default "
            "weights can only "
            "be uploaded.",
            metavar="DIR",
        ),
    ] = None
    lora_dir: Annotated[
        str | None,
        Option(
            "Access",
            "Directory from which administrators may load adapters at run time; by default only "
            "--lora-modules are "
            "loaded.",
            metavar="DIR",
        ),
    ] = None
    max_weights_bytes: Annotated[
        int,
        Option(
            "Access",
            "Maximum size of uploaded weights, in bytes.",
            minimum=1024,
            allows_size_suffix=True,
        ),
    ] = 1024 * MIB
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option(
            "Access",
            "Additional host name to accept in the Host header, besides localhost. Repeatable.",
            metavar="HOST",
        ),
    ] = ()
    forwarded_allow_ips: Annotated[
        tuple[str, ...],
        Option(
            "Access",
            "Reverse proxy whose `X-Forwarded-For` and `X-Forwarded-Proto` name the client: an "
            "address, a network, `unix` for a Unix socket, or `*`. By default these headers are "
            "ignored. Repeatable.",
            metavar="ADDRESS",
        ),
    ] = ()
    strict: Annotated[
        bool,
        Option(
            "API",
            "Reject requests and settings with parameters that would be ignored, instead of "
            "warning.",
        ),
    ] = False
    explain: Annotated[
        bool,
        Option(
            "API",
            "Enable /v1/chat/completions/render and .../explain, which show how a prompt was "
            "rendered and "
            "cached. Recent prompts of each API key are kept in memory.",
        ),
    ] = False
    drop_agent_nonces: Annotated[
        bool,
        Option(
            "API",
            "Keep the unique prefix that some agents add to every prompt (such as Claude Code's "
            "billing "
            "header). Prefix caching is not effective then.",
            off_flag="keep-agent-nonces",
        ),
    ] = True
    max_logprobs: Annotated[
        int, Option("API", "Maximum `top_logprobs` per token.", minimum=0, maximum=1000)
    ] = 20
    reasoning_verification: Annotated[
        Literal["lenient", "strict", "off"],
        Option(
            "API",
            "How to handle returned reasoning that this server did not sign: `lenient` drops it, "
            "or uses its "
            "summary, with a warning; `strict` rejects the request; `off` skips the signature "
            "check.",
        ),
    ] = "lenient"
    max_file_bytes: Annotated[
        int,
        Option(
            "Store",
            "Maximum size of an uploaded file, in bytes.",
            minimum=1024,
            allows_size_suffix=True,
        ),
    ] = 200 * MIB
    batch_concurrency: Annotated[
        int,
        Option(
            "Scheduling",
            "Maximum number of concurrent batch requests; they run at the lowest priority.",
            minimum=1,
        ),
    ] = 16
    max_background: Annotated[
        int,
        Option(
            "Store",
            "Maximum number of background responses, shared between API keys; beyond it requests "
            "get 429 with Retry-After.",
            minimum=0,
        ),
    ] = 64
    log_format: Annotated[
        Literal["text", "json"],
        Option(
            "Logging",
            "Format of the log: lines of `text` for people, or JSON objects, which have the API "
            "key's name, the model, "
            "tokens and times of each request.",
        ),
    ] = "text"
    access_log: Annotated[
        bool, Option("Logging", "Disable the access log.", vllm_name="disable_uvicorn_access_log")
    ] = True
