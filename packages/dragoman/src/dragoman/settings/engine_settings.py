"""What engines declare to the settings: their own ones, and those of the server that they
support.

A package registers the declaration of its engine in the entry point group
`dragoman.engine_specs`, under the engine's name. Every command loads the declarations of
all installed engines, so their modules import what an engine needs only when it is built.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from dragoman_cli.entry_points import find_entry_points

GROUP = "dragoman.engine_specs"
"""The entry point group in which packages register the declarations of their engines."""
PARSING_SETTINGS = frozenset(
    {"tool_call_parser", "reasoning_parser", "override_generation_config", "max_num_seqs"}
)
"""Settings of the server that engines support whose output is parsed by `parsers`."""
TOKEN_SETTINGS = PARSING_SETTINGS | {
    "chat_template",
    "trust_request_chat_template",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "worker_timeout",
    "worker_memory",
}
"""Those that engines support whose prompts this server renders to token ids."""
BATCHING_SETTINGS = TOKEN_SETTINGS | {
    "kv_cache_tokens",
    "kv_offloading_dir",
    "kv_offloading_bytes",
    "step_timeout",
    "close_at_limit",
}
"""Those that engines support that run on the built-in step loop."""
VLLM_SETTINGS = TOKEN_SETTINGS | {
    "block_size",
    "num_gpu_blocks_override",
    "enable_chunked_prefill",
    "scheduling_policy",
    "speculative_config",
    "data_parallel_size",
    "kv_events_config",
    "kv_transfer_config",
    "seed",
    "lora_modules",
}
"""Those that engines with vLLM's scheduler support."""


class EngineDeclaration(Struct, frozen=True, kw_only=True):
    """What an engine declares to the settings.

    Attributes:
        name: The engine's name: the text before the colon in MODEL.
        settings: A frozen struct of the engine's own settings, whose fields are
            annotated as those of `Settings`; None if it has none.
        supports: Names of the server's settings that the engine supports, of those that
            some engines do not support; None if that is not known.
    """

    name: str
    settings: type[Struct] | None = None
    supports: frozenset[str] | None = None


@cache
def load_declarations() -> tuple[EngineDeclaration, ...]:
    """Load the declarations of the installed engines, in the order of their names."""
    return tuple(point.load() for point in find_entry_points(GROUP))


def load_engine_settings() -> tuple[type[Struct], ...]:
    """Load the types of the engines' own settings, in the order of their engines' names."""
    types = (item.settings for item in load_declarations() if item.settings is not None)
    return tuple(dict.fromkeys(types))
