"""Bodies of rerank and score as they come: shapes and bounds alone."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ..embeddings.wire import Reading
from ..fields import Count

MAX_DOCUMENTS = 10_000
"""Cohere's own bound."""


class Document(Struct, frozen=True):
    """Cohere's and Jina's clients may send an object."""

    text: str


Texts = Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class Scoring(Reading, frozen=True, kw_only=True):
    """What rerank and score have in common; 0 tokens are all of them."""

    max_tokens_per_query: Count | None = None
    max_tokens_per_doc: Count | None = None
    use_activation: bool | None = None


class RerankBody(Scoring, frozen=True, kw_only=True):
    """top_n: how many of the best; 0 is all of them."""

    query: str
    documents: Texts
    top_n: Count | None = None
    return_documents: bool | None = None


class ScoreBody(Scoring, frozen=True, kw_only=True):
    """Two sides under one of four pairs of names."""

    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    queries: str | Texts | None = None
    documents: str | Texts | None = None
    items: str | Texts | None = None
    data_1: str | Texts | None = None
    data_2: str | Texts | None = None
