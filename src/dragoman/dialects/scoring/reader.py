"""Parses bodies of rerank and score."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ...core.embeddings import TextPairs
from ...core.errors import RequestError, Unsupported
from ..base import ReaderOptions
from ..body import BodySchema, ParsedBody, invalid_value, missing_parameter
from ..fields import resolve_model
from .parameters import RERANK, SCORE
from .wire import Document, RerankBody, ScoreBody, ScoringFields


class RerankCall(Struct, frozen=True):
    """A parsed rerank request.

    top_n: maximum results; None is all.
    is_tei: the request and the response have TEI's form.
    warnings, unknown: as in `GenerationCall`.
    """

    model: str
    texts: TextPairs
    top_n: int | None
    return_documents: bool
    is_tei: bool = False
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class ScoreCall(Struct, frozen=True):
    model: str
    texts: TextPairs
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


_RERANK, _SCORE = BodySchema(RerankBody), BodySchema(ScoreBody)
_SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


def read_rerank(data: bytes, options: ReaderOptions) -> RerankCall:
    parsed = ParsedBody(data)
    warnings, unknown = RERANK.classify_body(parsed, _RERANK)
    body = parsed.decode(_RERANK)
    if body.texts is not None:
        return _read_tei_rerank(body, body.texts, options, tuple(warnings), unknown)
    if body.documents is None:
        raise missing_parameter("documents")
    documents = _read_texts(body.documents, "documents")
    return RerankCall(
        resolve_model(body.model, options),
        _build_pairs(body, (_require_text(body.query, "query"),), documents),
        body.top_n or None,
        body.return_documents is not False,
        warnings=tuple(warnings),
        unknown=unknown,
    )


def _read_tei_rerank(
    body: RerankBody, texts: list[str], options: ReaderOptions, warnings: tuple[str, ...], unknown: tuple[str, ...]
) -> RerankCall:
    """Read the form of Text Embeddings Inference, which names the documents `texts`."""
    if body.documents is not None:
        raise invalid_value("texts", "it cannot be combined with 'documents'")
    direction = (body.truncation_direction or "right").lower()
    if direction not in ("left", "right"):
        raise invalid_value("truncation_direction", "expected 'right'")
    if direction == "left":
        raise Unsupported("'truncation_direction' of left is not supported here.", param="truncation_direction")
    # TEI's name for scores before the sigmoid.
    if body.raw_scores:
        body = msgspec.structs.replace(body, use_activation=False)
    if body.truncate:
        body = msgspec.structs.replace(body, truncate_prompt_tokens=-1)
    pairs = _build_pairs(body, (_require_text(body.query, "query"),), _read_texts(texts, "texts"))
    model = resolve_model(body.model, options)
    return RerankCall(model, pairs, body.top_n or None, bool(body.return_text), True, warnings, unknown)


def read_score(data: bytes, options: ReaderOptions) -> ScoreCall:
    parsed = ParsedBody(data)
    warnings, unknown = SCORE.classify_body(parsed, _SCORE)
    body = parsed.decode(_SCORE)
    first, second = _read_sides(body)
    if len(first) not in (1, len(second)):
        raise RequestError(
            f"There are {len(first)} texts on one side and {len(second)} on the other: send one text or equal numbers.",
            param="text_1",
            code="invalid_value",
        )
    return ScoreCall(resolve_model(body.model, options), _build_pairs(body, first, second), tuple(warnings), unknown)


def _read_sides(body: ScoreBody) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read both sides. Raises RequestError unless exactly one pair of names is used."""
    texts = {
        "text_1": body.text_1,
        "text_2": body.text_2,
        "queries": body.queries,
        "documents": body.documents,
        "items": body.items,
        "data_1": body.data_1,
        "data_2": body.data_2,
    }
    present = {name: value for name, value in texts.items() if value is not None}
    for first, second in _SIDES:
        if present.keys() == {first, second}:
            return _read_texts(present[first], first), _read_texts(present[second], second)
    missing_name = next((name for name in ("text_1", "text_2") if name not in present), "text_1")
    raise missing_parameter(
        missing_name, " Send text_1 and text_2, queries and documents or items, or data_1 and data_2."
    )


def _build_pairs(body: ScoringFields, queries: tuple[str, ...], documents: tuple[str, ...]) -> TextPairs:
    if body.truncate_prompt_tokens == 0:
        raise invalid_value("truncate_prompt_tokens", "expected -1 or an integer >= 1")
    if body.truncation_side == "left":
        raise Unsupported("'truncation_side' of left is not supported here.", param="truncation_side")
    return TextPairs(
        queries,
        documents,
        body.max_tokens_per_query or None,
        body.max_tokens_per_doc or None,
        body.truncate_prompt_tokens,
        body.use_activation,
    )


def _read_texts(value: str | Sequence[str | Document], param: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_require_text(value, param),)
    return tuple(
        _require_text(entry.text if isinstance(entry, Document) else entry, f"{param}[{index}]")
        for index, entry in enumerate(value)
    )


def _require_text(text: str, param: str) -> str:
    if not text:
        raise invalid_value(param, "a text must not be empty")
    return text
