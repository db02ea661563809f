"""Gemini's descriptions of models."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ..field_errors import invalid_value, parse_digits
from ..json_encoding import replace_surrogates

PREFIX = "models/"
MAX_PAGE = 1_000
DEFAULT_PAGE = 50


class GeminiModel(Struct, frozen=True):
    """A model.

    name: with the prefix `models/`.
    inputTokenLimit, outputTokenLimit: the context, which prompt and answer share.
    """

    name: str
    version: str
    displayName: str
    supportedGenerationMethods: list[str]
    inputTokenLimit: int | UnsetType = UNSET
    outputTokenLimit: int | UnsetType = UNSET
    thinking: bool | UnsetType = UNSET


class GeminiModelList(Struct, frozen=True):
    models: list[GeminiModel]
    nextPageToken: str | UnsetType = UNSET


def build_model(
    name: str, max_model_len: int | None, capabilities: Sequence[str] | None
) -> GeminiModel:
    """Describe a model.

    max_model_len: None if it is unknown.
    capabilities: the server's names; None if they are unknown.
    """
    limit = UNSET if max_model_len is None else max_model_len
    methods: list[str] = []
    if capabilities is None or "generation" in capabilities:
        methods += ["generateContent", "countTokens"]
    if capabilities is None or "embeddings" in capabilities:
        methods += ["embedContent"]
    return GeminiModel(
        PREFIX + replace_surrogates(name),
        "1",
        replace_surrogates(name),
        methods,
        limit,
        limit,
        UNSET if capabilities is None else "reasoning" in capabilities,
    )


def render_model_page(
    models: Sequence[GeminiModel], page_size: str | None, page_token: str | None
) -> bytes:
    """Serialize one page of a list. Raises RequestError: a parameter is invalid.

    page_token: the index of the page's first model.
    """
    size = DEFAULT_PAGE if not page_size else parse_digits(page_size, 9)
    start = 0 if not page_token else parse_digits(page_token, 9)
    if size is None:
        raise invalid_value("pageSize", "expected an integer >= 0")
    if start is None:
        raise invalid_value("pageToken", "expected the nextPageToken of the previous page")
    end = start + min(size or DEFAULT_PAGE, MAX_PAGE)
    token = str(end) if end < len(models) else UNSET
    return msgspec.json.encode(GeminiModelList(list(models[start:end]), token))
