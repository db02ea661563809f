"""The kind of servers with OpenAI's Responses API."""

from __future__ import annotations

from ...core.capabilities import Feature
from ...core.field_names import FieldNames
from .embeddings import decode_embeddings, encode_embed_request
from .responses_events import ResponseEventReader
from .responses_request import encode_input_tokens_request, encode_responses_request
from .server_kind import ServerKind, TokenCounting, UpstreamApi
from .wire import InputTokens

RESPONSES_API = UpstreamApi(
    encode=encode_responses_request,
    create_reader=lambda _, new_id, __: ResponseEventReader(new_id),
    encode_embeddings=encode_embed_request,
    decode_embeddings=decode_embeddings,
    counting=TokenCounting(encode_input_tokens_request, InputTokens),
)

RESPONSES = ServerKind(
    name="responses",
    # Responses has no stop strings; the pipeline applies them.
    features=frozenset(
        {Feature.JSON_OBJECT, Feature.JSON_SCHEMA, Feature.TOOLS, Feature.IMAGES, Feature.FILES}
    ),
    parameters=frozenset(
        {"temperature", "top_p", "max_tokens", "reasoning_effort", "detail", "schema_description"}
    ),
    api=RESPONSES_API,
    field_names=FieldNames(
        ("input", "messages"),
        ("max_output_tokens", "max_tokens"),
        (r"reasoning\.effort", "reasoning_effort"),
        (r"text\.format", "response_format"),
    ),
    has_openai_tools=True,
)
