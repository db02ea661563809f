"""Renders the responses of rerank and score: vLLM's fields, a superset of Cohere's and Jina's."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.embeddings import RelevanceScores
from ..base import Header, Profile
from ..json_encoding import replace_surrogates
from ..prompt_usage import PromptUsage, build_prompt_usage


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


class _RerankBody(Struct, frozen=True):
    id: str
    model: str
    usage: _Usage
    results: list[_Result]


class _Score(Struct, frozen=True):
    index: int
    object: str
    score: float


class _ScoreBody(Struct, frozen=True):
    id: str
    object: str
    created: int
    model: str
    data: list[_Score]
    usage: PromptUsage


def render_rerank(
    scores: RelevanceScores, header: Header, documents: tuple[str, ...] | None, top_n: int | None
) -> bytes:
    """Render results, best first; of equal scores the earlier document first.

    documents: None omits the texts.
    top_n: None is all.
    """
    order = sorted(range(len(scores.scores)), key=lambda index: -scores.scores[index])[:top_n]
    results = [
        _Result(
            index, scores.scores[index], UNSET if documents is None else _Document(replace_surrogates(documents[index]))
        )
        for index in order
    ]
    usage = _Usage(scores.prompt_tokens, scores.prompt_tokens)
    return msgspec.json.encode(_RerankBody(header.id, header.model, usage, results))


class _TeiResult(Struct, frozen=True, omit_defaults=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


def render_tei_rerank(scores: RelevanceScores, texts: tuple[str, ...] | None, top_n: int | None) -> bytes:
    """Render results as Text Embeddings Inference does, an array; see `render_rerank`."""
    order = sorted(range(len(scores.scores)), key=lambda index: -scores.scores[index])[:top_n]
    return msgspec.json.encode(
        [
            _TeiResult(index, scores.scores[index], UNSET if texts is None else replace_surrogates(texts[index]))
            for index in order
        ]
    )


def render_scores(scores: RelevanceScores, header: Header, profile: Profile) -> bytes:
    data = [_Score(index, "score", score) for index, score in enumerate(scores.scores)]
    usage = build_prompt_usage(scores.prompt_tokens, profile)
    return msgspec.json.encode(_ScoreBody(header.id, "list", header.created, header.model, data, usage))
