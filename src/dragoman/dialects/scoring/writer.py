"""Renders the responses of rerank and score: vLLM's fields, a superset of Cohere's and Jina's."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.embeddings import RelevanceScores
from ..base import Header, Profile
from ..json_encoding import replace_surrogates
from ..prompt_usage import PromptUsage, build_prompt_usage


class RankedDocument(Struct, frozen=True):
    text: str
    multi_modal: None = None


class RerankResult(Struct, frozen=True, omit_defaults=True):
    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class RerankAnswer(Struct, frozen=True):
    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]


class ScoreResult(Struct, frozen=True):
    index: int
    object: str
    score: float


class ScoreAnswer(Struct, frozen=True):
    id: str
    object: str
    created: int
    model: str
    data: list[ScoreResult]
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
        RerankResult(
            index,
            scores.scores[index],
            UNSET if documents is None else RankedDocument(replace_surrogates(documents[index])),
        )
        for index in order
    ]
    usage = RerankUsage(scores.prompt_tokens, scores.prompt_tokens)
    return msgspec.json.encode(RerankAnswer(header.id, header.model, usage, results))


class TeiRerankResult(Struct, frozen=True, omit_defaults=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


def render_tei_rerank(scores: RelevanceScores, texts: tuple[str, ...] | None, top_n: int | None) -> bytes:
    """Render results as Text Embeddings Inference does, an array; see `render_rerank`."""
    order = sorted(range(len(scores.scores)), key=lambda index: -scores.scores[index])[:top_n]
    return msgspec.json.encode(
        [
            TeiRerankResult(index, scores.scores[index], UNSET if texts is None else replace_surrogates(texts[index]))
            for index in order
        ]
    )


def render_scores(scores: RelevanceScores, header: Header, profile: Profile) -> bytes:
    data = [ScoreResult(index, "score", score) for index, score in enumerate(scores.scores)]
    usage = build_prompt_usage(scores.prompt_tokens, profile)
    return msgspec.json.encode(ScoreAnswer(header.id, "list", header.created, header.model, data, usage))
