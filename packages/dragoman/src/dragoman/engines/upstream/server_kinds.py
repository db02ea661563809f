"""The kinds of servers that can be upstreams."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from urllib.parse import urlsplit

from msgspec import Struct

from ...core.capabilities import Feature
from ...core.field_names import CORE_NAMES, FieldNames

_KNOWN_HOSTS = {
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gemini",
}
"""Kind of server by host, for hosts whose kind is known without a request."""


_GENERATION = r"generation_?[cC]onfig\."


class Wire(StrEnum):
    """The API with which a server generates text."""

    CHAT = "chat"
    MESSAGES = "messages"
    RESPONSES = "responses"
    GEMINI = "gemini"


class ServerKind(Struct, frozen=True):
    """One kind of server.

    features, parameters: see Capabilities.
    wire: the API that requests use. CHAT includes Completions, for prompts that are not
        conversations.
    owners: values of `owned_by` in its `/models`.
    max_tokens_field: name of the field for max_tokens in Chat Completions.
    unlimited_max_tokens: JSON value of max_tokens for "the rest of the context" in
        Completions; None if there is none.
    reasoning_fields: fields that accept past reasoning of the assistant.
    has_reasoning_details: whether reasoning may have seals, which are sent back as
        OpenRouter's `reasoning_details`.
    returns_token_ids: whether it returns token ids on request, and usage with every
        chunk.
    has_developer_role: whether it accepts the developer role.
    has_openai_tools: whether it accepts custom tools and `allowed_tools`.
    has_structured_outputs: whether it accepts vLLM's `structured_outputs`.
    has_one_task: whether it serves one model, which either generates, embeds or scores.
    has_encoding_options: whether it has `/score` and vLLM's options for embeddings.
    has_tei_rerank: whether it has `/rerank` in the format of Text Embeddings Inference.
    has_admin_routes: whether it has vLLM's routes to pause, sleep, reset the prefix
        cache and load adapters.
    reports_warnings: whether its responses list ignored parts of the request, if asked
        to.
    parameter_names: its names of parameters, where they differ from ours.
    field_names: maps field names in its errors and warnings to ours, where they differ.
    max_logprobs: maximum of top_logprobs.
    """

    name: str
    features: frozenset[Feature]
    parameters: frozenset[str]
    wire: Wire = Wire.CHAT
    owners: tuple[str, ...] = ()
    max_tokens_field: str = "max_tokens"
    unlimited_max_tokens: bytes | None = None
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    has_reasoning_details: bool = False
    returns_token_ids: bool = False
    has_developer_role: bool = False
    has_openai_tools: bool = False
    has_structured_outputs: bool = False
    has_one_task: bool = False
    has_encoding_options: bool = False
    has_tei_rerank: bool = False
    has_admin_routes: bool = False
    reports_warnings: bool = False
    parameter_names: Mapping[str, str] = MappingProxyType({})
    field_names: FieldNames = CORE_NAMES
    max_logprobs: int = 20


# Without `suffix`, which vLLM rejects, and SGLang and llama.cpp ignore.
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
        "schema_description",
    }
)


_TEMPLATE = frozenset({"chat_template_kwargs", "enable_thinking"})


_VLLM_FEATURES = _OPENAI_FEATURES | {
    Feature.REGEX,
    Feature.CHOICE,
    Feature.GRAMMAR,
    Feature.TOKEN_IDS,
    Feature.PROMPT_LOGPROBS,
    Feature.LORA,
}


_VLLM = (
    _OPENAI
    | _TEMPLATE
    | {"top_k", "min_p", "repetition_penalty", "allowed_token_ids", "bad_words"}
    | {"min_tokens", "stop_token_ids", "include_stop", "ignore_eos", "truncate_prompt"}
    | {"kv_transfer_params", "vllm_xargs", "lora", "session_id", "cache_hit_threshold"}
    | {"priority", "cache_salt", "skip_special_tokens", "documents", "continue_final_message"}
    | {"add_special_tokens"}
)


_LOCAL = _OPENAI | _TEMPLATE | {"top_k", "min_p", "repetition_penalty"}


_ALL = (
    ServerKind(
        "compatible",
        _OPENAI_FEATURES | {Feature.SUFFIX},
        _OPENAI,
        has_reasoning_details=True,
    ),
    ServerKind(
        "openai",
        _OPENAI_FEATURES | {Feature.SUFFIX},
        _OPENAI,
        owners=("openai", "openai-internal", "system"),
        max_tokens_field="max_completion_tokens",
        field_names=FieldNames(("max_completion_tokens", "max_tokens")),
        reasoning_fields=(),
        has_developer_role=True,
        has_openai_tools=True,
    ),
    ServerKind(
        "vllm",
        _VLLM_FEATURES | {Feature.REASONING_BUDGET},
        # vLLM rejects a priority unless it runs with the priority scheduling policy.
        _VLLM - {"priority"},
        owners=("vllm",),
        unlimited_max_tokens=b"null",
        reasoning_fields=("reasoning", "reasoning_content"),
        returns_token_ids=True,
        has_one_task=True,
        has_encoding_options=True,
        has_admin_routes=True,
        has_structured_outputs=True,
    ),
    ServerKind(
        "dragoman",
        _VLLM_FEATURES | {Feature.REASONING_BUDGET, Feature.SUFFIX},
        _VLLM | {"close_at_limit"},
        owners=("dragoman",),
        has_reasoning_details=True,
        unlimited_max_tokens=b"-1",
        returns_token_ids=True,
        has_encoding_options=True,
        has_admin_routes=True,
        has_developer_role=True,
        has_openai_tools=True,
        has_structured_outputs=True,
        reports_warnings=True,
    ),
    ServerKind(
        "sglang",
        _OPENAI_FEATURES | {Feature.REGEX},
        _LOCAL | {"min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens"},
        owners=("sglang",),
        has_one_task=True,
    ),
    ServerKind(
        "llama.cpp",
        _OPENAI_FEATURES | {Feature.GRAMMAR},
        _LOCAL | {"ignore_eos"},
        owners=("llamacpp",),
        unlimited_max_tokens=b"-1",
        parameter_names=MappingProxyType({"repetition_penalty": "repeat_penalty"}),
        field_names=FieldNames(("repeat_penalty", "repetition_penalty")),
        has_one_task=True,
    ),
    # Any server with Anthropic's Messages API.
    ServerKind(
        "anthropic",
        frozenset(
            {
                Feature.JSON_SCHEMA,
                Feature.TOOLS,
                Feature.IMAGES,
                Feature.FILES,
                Feature.REASONING_BUDGET,
            }
        ),
        frozenset(
            {
                "temperature",
                "top_p",
                "top_k",
                "max_tokens",
                "stop",
                "reasoning_effort",
                "enable_thinking",
            }
        ),
        wire=Wire.MESSAGES,
        field_names=FieldNames(
            ("stop_sequences", "stop"),
            (r"thinking\.budget_tokens", "thinking_token_budget"),
            (r"output_config\.effort", "reasoning_effort"),
            (r"output_config\.format", "response_format"),
        ),
    ),
    # Any server with OpenAI's Responses API, which lacks stop strings; the pipeline
    # applies them.
    ServerKind(
        "responses",
        frozenset(
            {Feature.JSON_OBJECT, Feature.JSON_SCHEMA, Feature.TOOLS, Feature.IMAGES, Feature.FILES}
        ),
        frozenset({"temperature", "top_p", "max_tokens", "reasoning_effort", "detail"})
        | {"schema_description"},
        wire=Wire.RESPONSES,
        field_names=FieldNames(
            ("input", "messages"),
            ("max_output_tokens", "max_tokens"),
            (r"reasoning\.effort", "reasoning_effort"),
            (r"text\.format", "response_format"),
        ),
        has_openai_tools=True,
    ),
    # Any server with Google's Gemini API.
    ServerKind(
        "gemini",
        frozenset(
            {
                Feature.JSON_OBJECT,
                Feature.JSON_SCHEMA,
                Feature.CHOICE,
                Feature.TOOLS,
                Feature.IMAGES,
                Feature.AUDIO,
                Feature.FILES,
                Feature.REASONING_BUDGET,
            }
        ),
        frozenset(
            {"temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed"}
            | {"max_tokens", "stop", "reasoning_effort", "enable_thinking"}
        ),
        wire=Wire.GEMINI,
        parameter_names=MappingProxyType(
            {
                "top_p": "topP",
                "top_k": "topK",
                "presence_penalty": "presencePenalty",
                "frequency_penalty": "frequencyPenalty",
            }
        ),
        field_names=FieldNames(
            # Google's errors have names in snake_case.
            (_GENERATION + "max_?[oO]utput_?[tT]okens", "max_tokens"),
            (_GENERATION + "stop_?[sS]equences", "stop"),
            (_GENERATION + "top_?[pP]", "top_p"),
            (_GENERATION + "top_?[kK]", "top_k"),
            (_GENERATION + "presence_?[pP]enalty", "presence_penalty"),
            (_GENERATION + "frequency_?[pP]enalty", "frequency_penalty"),
            (_GENERATION + r"thinking_?[cC]onfig\.thinking_?[bB]udget", "thinking_token_budget"),
            (_GENERATION + r"thinking_?[cC]onfig\.thinking_?[lL]evel", "reasoning_effort"),
            (
                _GENERATION + "response_?([mM]ime_?[tT]ype|[jJ]son_?[sS]chema|[sS]chema)",
                "response_format",
            ),
            (_GENERATION + "temperature", "temperature"),
            (_GENERATION + "seed", "seed"),
            ("tool_?[cC]onfig", "tool_choice"),
            (r"contents\[\d+\]", "messages"),
            ("contents", "messages"),
            ("output_?[dD]imensionality", "dimensions"),
        ),
    ),
    # Hugging Face's Text Embeddings Inference, which does not generate text.
    ServerKind("tei", frozenset(), frozenset(), has_tei_rerank=True),
)


KINDS: Mapping[str, ServerKind] = MappingProxyType({kind.name: kind for kind in _ALL})


def find_kind(owner: str) -> ServerKind:
    """Find the kind of server by the `owned_by` of its models."""
    return next((kind for kind in _ALL if owner.lower() in kind.owners), KINDS["compatible"])


def find_kind_by_host(url: str) -> ServerKind | None:
    """Find the kind of a server by its URL, without a request; None if it is unknown."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    # Below this path, Google has Chat Completions.
    if path.endswith("/openai"):
        return None
    name = _KNOWN_HOSTS.get(parts.hostname or "")
    if path.endswith("/v1beta"):
        name = "gemini"
    return None if name is None else KINDS[name]
