"""The kinds of servers with OpenAI's Chat Completions and Completions."""

from __future__ import annotations

from types import MappingProxyType

from ...core.capabilities import Feature
from ...core.field_names import FieldNames
from .chunk_reader import ChunkReader
from .embeddings import decode_embeddings, encode_embed_request
from .openai_request import encode_request
from .scores import encode_score_request
from .server_kind import ServerKind, UpstreamApi

CHAT_API = UpstreamApi(
    encode=encode_request,
    create_reader=ChunkReader,
    encode_embeddings=encode_embed_request,
    decode_embeddings=decode_embeddings,
    verifies_reasoning=False,
    has_one_choice=False,
)
"""Chat Completions, and Completions for prompts that are not conversations."""


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


OPENAI_KINDS = (
    ServerKind(
        name="compatible",
        features=_OPENAI_FEATURES | {Feature.SUFFIX},
        parameters=_OPENAI,
        api=CHAT_API,
        has_reasoning_details=True,
    ),
    ServerKind(
        name="openai",
        features=_OPENAI_FEATURES | {Feature.SUFFIX},
        parameters=_OPENAI,
        api=CHAT_API,
        owners=("openai", "openai-internal", "system"),
        max_tokens_field="max_completion_tokens",
        field_names=FieldNames(("max_completion_tokens", "max_tokens")),
        reasoning_fields=(),
        has_developer_role=True,
        has_openai_tools=True,
    ),
    ServerKind(
        name="vllm",
        features=_VLLM_FEATURES | {Feature.REASONING_BUDGET},
        # vLLM rejects a priority unless it runs with the priority scheduling policy.
        parameters=_VLLM - {"priority"},
        api=CHAT_API,
        encode_scores=encode_score_request,
        owners=("vllm",),
        unlimited_max_tokens=b"null",
        reasoning_fields=("reasoning", "reasoning_content"),
        returns_token_ids=True,
        has_one_task=True,
        has_encoding_options=True,
        has_admin_routes=True,
        has_structured_outputs=True,
        has_audio_usage=True,
    ),
    ServerKind(
        name="dragoman",
        features=_VLLM_FEATURES | {Feature.REASONING_BUDGET, Feature.SUFFIX},
        parameters=_VLLM | {"close_at_limit"},
        api=CHAT_API,
        encode_scores=encode_score_request,
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
        name="sglang",
        features=_OPENAI_FEATURES | {Feature.REGEX},
        parameters=_LOCAL | {"min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens"},
        api=CHAT_API,
        owners=("sglang",),
        has_one_task=True,
    ),
    ServerKind(
        name="llama.cpp",
        features=_OPENAI_FEATURES | {Feature.GRAMMAR},
        parameters=_LOCAL | {"ignore_eos"},
        api=CHAT_API,
        owners=("llamacpp",),
        unlimited_max_tokens=b"-1",
        parameter_names=MappingProxyType({"repetition_penalty": "repeat_penalty"}),
        field_names=FieldNames(("repeat_penalty", "repetition_penalty")),
        has_one_task=True,
    ),
)
