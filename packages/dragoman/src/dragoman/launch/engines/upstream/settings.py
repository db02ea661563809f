"""The settings of the engine `upstream` beside those of the server."""

from typing import Annotated, Literal

from msgspec import Struct

from ....settings.option import Option


class UpstreamSettings(Struct, frozen=True, kw_only=True):
    """Settings of the engine `upstream`."""

    upstream_model: Annotated[
        str | None,
        Option(
            "Upstream",
            "Upstream model to serve; by default the first one that the upstream lists.",
        ),
    ] = None
    upstream_kind: Annotated[
        Literal[
            "auto",
            "compatible",
            "openai",
            "vllm",
            "dragoman",
            "sglang",
            "llama.cpp",
            "anthropic",
            "responses",
            "gemini",
            "tei",
        ],
        Option(
            "Upstream",
            "Type of upstream server, which determines the extensions in use; `auto` detects it.",
        ),
    ] = "auto"
    upstream_task: Annotated[
        tuple[str, ...],
        Option(
            "Upstream",
            "What the upstream model does: `generate`, `embed`, `score`, or several, such as "
            "generate,embed. "
            "Detected from the upstream by default.",
        ),
    ] = ()
    upstream_api_key: Annotated[
        tuple[str, ...],
        Option(
            "Upstream",
            "API key for the upstream. Repeatable: one for all upstreams, or one per upstream in "
            "the same order.",
            is_secret=True,
        ),
    ] = ()
    upstream_weight: Annotated[
        tuple[str, ...],
        Option(
            "Upstream",
            "Load-balancing weights, in the order of the upstreams, such as 2,1. Equal by default.",
        ),
    ] = ()
    upstream_timeout: Annotated[
        float,
        Option(
            "Upstream",
            "Seconds without data after which an upstream request fails.",
            minimum=0.1,
            maximum=86400,
        ),
    ] = 600.0
    upstream_retries: Annotated[
        int,
        Option(
            "Upstream",
            "Number of retries on other upstreams before the first byte of a response.",
            minimum=0,
            maximum=1000,
        ),
    ] = 2
