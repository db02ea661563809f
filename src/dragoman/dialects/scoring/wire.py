"""Bodies of rerank and score as they come: shapes and bounds alone."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ..embeddings.wire import TextInputFields
from ..fields import Count

MAX_DOCUMENTS = 10_000
"""Cohere's own bound."""


class Document(Struct, frozen=True):
    """Cohere's and Jina's clients may send an object."""

    text: str


DocumentList = Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class ScoringFields(TextInputFields, frozen=True, kw_only=True):
    """What rerank and score have in common; 0 tokens are all of them."""

    max_tokens_per_query: Count | None = None
    max_tokens_per_doc: Count | None = None
    use_activation: bool | None = None


class RerankBody(ScoringFields, frozen=True, kw_only=True):
    """top_n: how many of the best; 0 is all of them."""

    query: str
    documents: DocumentList
    top_n: Count | None = None
    return_documents: bool | None = None


class ScoreBody(ScoringFields, frozen=True, kw_only=True):
    """Two sides under one of four pairs of names."""

    text_1: str | DocumentList | None = None
    text_2: str | DocumentList | None = None
    queries: str | DocumentList | None = None
    documents: str | DocumentList | None = None
    items: str | DocumentList | None = None
    data_1: str | DocumentList | None = None
    data_2: str | DocumentList | None = None
