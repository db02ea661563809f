"""The kind of servers with Anthropic's Messages API."""

from __future__ import annotations

from types import MappingProxyType

from ...core.capabilities import Feature
from ...core.field_names import FieldNames
from .embeddings import decode_embeddings, encode_embed_request
from .messages_events import MessageEventReader
from .messages_request import encode_count_request, encode_messages_request
from .server_kind import ServerKind, TokenCounting, UpstreamApi
from .wire import InputTokens

MESSAGES_API = UpstreamApi(
    encode=encode_messages_request,
    create_reader=lambda _, new_id, __: MessageEventReader(new_id),
    encode_embeddings=encode_embed_request,
    decode_embeddings=decode_embeddings,
    counting=TokenCounting(encode_count_request, InputTokens),
    key_header="x-api-key",
    headers=MappingProxyType({"anthropic-version": "2023-06-01"}),
    version="/v1",
    requires_max_tokens=True,
)

ANTHROPIC = ServerKind(
    name="anthropic",
    features=frozenset(
        {
            Feature.JSON_SCHEMA,
            Feature.TOOLS,
            Feature.IMAGES,
            Feature.FILES,
            Feature.REASONING_BUDGET,
        }
    ),
    parameters=frozenset(
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
    api=MESSAGES_API,
    is_at=lambda url: url.hostname == "api.anthropic.com",
    field_names=FieldNames(
        ("stop_sequences", "stop"),
        (r"thinking\.budget_tokens", "thinking_token_budget"),
        (r"output_config\.effort", "reasoning_effort"),
        (r"output_config\.format", "response_format"),
    ),
    has_audio=False,
)
