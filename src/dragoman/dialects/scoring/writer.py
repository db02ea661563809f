"""The answers of rerank and score: vLLM's fields, which hold Cohere's and Jina's."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.embed import Scores
from ..base import Header, Profile
from ..text import printable
from ..usage import ReadUsage, read_usage


class _Document(Struct, frozen=True):
    text: str
    multi_modal: None = None


class _Result(Struct, frozen=True, omit_defaults=True):
    index: int
    relevance_score: float
    document: _Document | UnsetType = UNSET


class _Usage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class _Reranked(Struct, frozen=True):
    id: str
    model: str
    usage: _Usage
    results: list[_Result]


class _Score(Struct, frozen=True):
    index: int
    object: str
    score: float


class _Scored(Struct, frozen=True):
    id: str
    object: str
    created: int
    model: str
    data: list[_Score]
    usage: ReadUsage


def rerank_answer(made: Scores, header: Header, documents: tuple[str, ...] | None, top_n: int | None) -> bytes:
    """Best first; of equals the earlier one. documents: None leaves the texts out. top_n: None is all."""
    order = sorted(range(len(made.scores)), key=lambda index: -made.scores[index])[:top_n]
    results = [
        _Result(index, made.scores[index], UNSET if documents is None else _Document(printable(documents[index])))
        for index in order
    ]
    usage = _Usage(made.prompt_tokens, made.prompt_tokens)
    return msgspec.json.encode(_Reranked(header.id, header.model, usage, results))


def score_answer(made: Scores, header: Header, profile: Profile) -> bytes:
    data = [_Score(index, "score", score) for index, score in enumerate(made.scores)]
    usage = read_usage(made.prompt_tokens, profile)
    return msgspec.json.encode(_Scored(header.id, "list", header.created, header.model, data, usage))
