"""The structs of rerank and score bodies: shapes and bounds only."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ..embeddings.wire import TextInputFields
from ..fields import Count

MAX_DOCUMENTS = 10_000
"""Cohere's limit."""


class Document(Struct, frozen=True):
    """A document as an object, as some of Cohere's and Jina's clients send it."""

    text: str


DocumentList = Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class ScoringFields(TextInputFields, frozen=True, kw_only=True):
    """The fields that rerank and score share; 0 tokens is no limit."""

    max_tokens_per_query: Count | None = None
    max_tokens_per_doc: Count | None = None
    use_activation: bool | None = None


class RerankBody(ScoringFields, frozen=True, kw_only=True):
    """A rerank body.

    top_n: maximum results; 0 is all.
    texts: TEI's name of `documents`; the four fields after it are TEI's too, and its results have a form of their own.
    """

    query: str
    documents: DocumentList | None = None
    top_n: Count | None = None
    return_documents: bool | None = None
    texts: Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)] | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None
    """Left or right, in capitals or not."""


class ScoreBody(ScoringFields, frozen=True, kw_only=True):
    """A score body: two sides under one of four pairs of names."""

    text_1: str | DocumentList | None = None
    text_2: str | DocumentList | None = None
    queries: str | DocumentList | None = None
    documents: str | DocumentList | None = None
    items: str | DocumentList | None = None
    data_1: str | DocumentList | None = None
    data_2: str | DocumentList | None = None
