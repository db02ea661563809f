"""What this engine knows of one kind of server, and of the API that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol
from urllib.parse import SplitResult

from msgspec import Struct

from ...core.capabilities import Feature
from ...core.encoder_requests import Embeddings, TextEmbedRequest, TextPairs
from ...core.field_names import CORE_NAMES, FieldNames
from ...core.request import GenerateRequest
from .event_stream import StreamReader
from .scores import encode_rerank_requests
from .upstream_models import ModelQueries, ModelTasks, UpstreamModel
from .upstream_request import UpstreamDefaults, UpstreamRequest


class TokenCountResponse(Protocol):
    """The response to a request that counts tokens."""

    @property
    def count(self) -> int: ...


class TokenCounting(Struct, frozen=True):
    """How an API counts the tokens of a prompt.

    encode: encodes the request. Raises the errors of `UpstreamApi.encode`.
    response: the type of the response.
    """

    encode: Callable[[GenerateRequest, ServerKind, str], UpstreamRequest]
    response: type[TokenCountResponse]


class UpstreamApi(Struct, frozen=True, kw_only=True):
    """The API with which a server generates text.

    encode: encodes a request for the model of this name. Raises Unsupported for
        features that the API or this kind of server lacks, RequestError for values that
        it cannot represent.
    create_reader: creates the reader of a response. It gets a function that creates the
        ids of tool calls, and the text of a prompt of token ids that the client wants
        back.
    counting: None if only vLLM's tokenizer routes count.
    encode_embeddings: encodes a request for embeddings. Raises Unsupported.
    decode_embeddings: decodes the vectors. Raises EngineError, or Unsupported if the
        upstream ignored an option.
    key_header: the header of a key; None if the key is a bearer token.
    headers: headers that every request needs.
    version: the path of the API's version, for a base URL without a path; its vendor's
        SDKs append it. Empty if the base URL has to contain it.
    requires_max_tokens: whether each request needs a limit.
    verifies_reasoning: whether past reasoning has seals, which the server verifies.
    has_one_choice: whether a response has one choice only.
    """

    encode: Callable[[GenerateRequest, ServerKind, str, UpstreamDefaults], UpstreamRequest]
    create_reader: Callable[[GenerateRequest, Callable[[], str], str | None], StreamReader]
    encode_embeddings: Callable[[TextEmbedRequest, ServerKind, str], UpstreamRequest]
    decode_embeddings: Callable[[bytes, TextEmbedRequest, ServerKind], Embeddings]
    counting: TokenCounting | None = None
    key_header: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    version: str = ""
    requires_max_tokens: bool = False
    verifies_reasoning: bool = True
    has_one_choice: bool = True


class ServerKind(Struct, frozen=True, kw_only=True):
    """One kind of server.

    features, parameters: see Capabilities.
    api: the API that requests use.
    encode_scores: encodes pairs of texts for scoring. Raises Unsupported.
    find_model: finds the model of this name, or the first one for None, and its tasks
        if they are not given. Raises EngineError. None means OpenAI's list.
    is_at: whether a URL is that of such a server, known without a request.
    owners: values of `owned_by` in its `/models`.
    generates: whether it generates text.
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
    has_admin_routes: whether it has vLLM's routes to pause, sleep, reset the prefix
        cache and load adapters.
    has_audio: whether it may have OpenAI's audio API.
    has_audio_usage: whether it accepts vLLM's `stream_include_usage` for audio.
    reports_warnings: whether its responses list ignored parts of the request, if asked
        to.
    parameter_names: its names of parameters, where they differ from ours.
    field_names: maps field names in its errors and warnings to ours, where they differ.
    max_logprobs: maximum of top_logprobs.
    """

    name: str
    features: frozenset[Feature]
    parameters: frozenset[str]
    api: UpstreamApi
    encode_scores: Callable[[TextPairs, str], tuple[UpstreamRequest, ...]] = encode_rerank_requests
    find_model: Callable[[str | None, ModelTasks | None, ModelQueries], UpstreamModel] | None = None
    is_at: Callable[[SplitResult], bool] | None = None
    owners: tuple[str, ...] = ()
    generates: bool = True
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
    has_admin_routes: bool = False
    has_audio: bool = True
    has_audio_usage: bool = False
    reports_warnings: bool = False
    parameter_names: Mapping[str, str] = MappingProxyType({})
    field_names: FieldNames = CORE_NAMES
    max_logprobs: int = 20
