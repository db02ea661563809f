"""What the servers that speak OpenAI's API can do beyond it, and by which names. A table; it asks nobody.

A server that is none of these is `compatible`: what every one of them has had for years, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from ...core.engine import Feature
from ...core.request import Extras, GenerationLimits, SamplingOptions


class ServerKind(Struct, frozen=True):
    """features, parameters: see Capabilities. owners: what its `/models` says in `owned_by`.

    max_tokens: its name for that in a chat. rest: how a completion says "the rest of the context"; None where it
    cannot. thoughts: the fields in which it takes an assistant's past reasoning back. token_ids: it tells the ids of
    tokens on demand, and the usage of every chunk. developer: it knows that role. openai_tools: it takes free-form
    tools and `allowed_tools`. structured: it takes vLLM's `structured_outputs`. renamed: its names for parameters.
    """

    name: str
    features: frozenset[Feature]
    parameters: frozenset[str]
    owners: tuple[str, ...] = ()
    max_tokens_field: str = "max_tokens"
    unlimited_max_tokens: bytes | None = None
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    returns_token_ids: bool = False
    has_developer_role: bool = False
    has_openai_tools: bool = False
    has_structured_outputs: bool = False
    parameter_names: Mapping[str, str] = MappingProxyType({})
    max_logprobs: int = 20


_OPENAI_FEATURES = frozenset(
    {
        Feature.JSON_OBJECT,
        Feature.JSON_SCHEMA,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.IMAGES,
        Feature.AUDIO,
        Feature.FILES,
    }
)
_OPENAI = frozenset(
    {
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "logit_bias",
        "max_tokens",
        "stop",
        "best_of",
        "reasoning_effort",
        "detail",
    }
)
_TEMPLATE = frozenset({"chat_template_kwargs", "enable_thinking"})
_VLLM_FEATURES = _OPENAI_FEATURES | {Feature.REGEX, Feature.CHOICE, Feature.GRAMMAR, Feature.TOKEN_IDS}
_VLLM = (
    _OPENAI
    | _TEMPLATE
    | frozenset(SamplingOptions.__struct_fields__)
    | frozenset(GenerationLimits.__struct_fields__)
    | (frozenset(Extras.__struct_fields__) - {"lora"})
    | {"priority", "cache_salt", "skip_special_tokens", "documents", "continue_final_message"}
)
_LOCAL = _OPENAI | _TEMPLATE | {"top_k", "min_p", "repetition_penalty"}

_ALL = (
    ServerKind("compatible", _OPENAI_FEATURES, _OPENAI),
    ServerKind(
        "openai",
        _OPENAI_FEATURES,
        _OPENAI,
        ("openai", "openai-internal", "system"),
        max_tokens_field="max_completion_tokens",
        reasoning_fields=(),
        has_developer_role=True,
        has_openai_tools=True,
    ),
    ServerKind(
        "vllm",
        _VLLM_FEATURES | {Feature.REASONING_BUDGET},
        # A priority is an error there unless its scheduler goes by them.
        _VLLM - {"priority"},
        ("vllm",),
        unlimited_max_tokens=b"null",
        reasoning_fields=("reasoning", "reasoning_content"),
        returns_token_ids=True,
        has_structured_outputs=True,
    ),
    ServerKind(
        "dragoman",
        _VLLM_FEATURES | {Feature.REASONING_BUDGET},
        _VLLM,
        ("dragoman",),
        unlimited_max_tokens=b"-1",
        returns_token_ids=True,
        has_developer_role=True,
        has_openai_tools=True,
        has_structured_outputs=True,
    ),
    ServerKind(
        "sglang",
        _OPENAI_FEATURES | {Feature.REGEX},
        _LOCAL | {"min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens"},
        ("sglang",),
    ),
    ServerKind(
        "llama.cpp",
        _OPENAI_FEATURES | {Feature.GRAMMAR},
        _LOCAL | {"ignore_eos"},
        ("llamacpp",),
        unlimited_max_tokens=b"-1",
        parameter_names=MappingProxyType({"repetition_penalty": "repeat_penalty"}),
    ),
)
KINDS: Mapping[str, ServerKind] = MappingProxyType({kind.name: kind for kind in _ALL})


def find_kind(owner: str) -> ServerKind:
    """The kind of server whose models are owned by this one."""
    return next((kind for kind in _ALL if owner.lower() in kind.owners), KINDS["compatible"])
