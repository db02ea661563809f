"""Bodies of rerank and score to what was asked."""

from __future__ import annotations

from msgspec import Struct

from ...core.embed import PairTexts
from ...core.errors import RequestError, Unsupported
from ..base import ReaderOptions
from ..body import Body, Shape, invalid, missing
from ..fields import model_of
from .parameters import RERANK, SCORE
from .wire import Document, RerankBody, ScoreBody, Scoring, Texts


class RerankCall(Struct, frozen=True):
    """top_n: None is all. warnings, unknown: as in `Call`."""

    model: str
    texts: PairTexts
    top_n: int | None
    return_documents: bool
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class ScoreCall(Struct, frozen=True):
    model: str
    texts: PairTexts
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


_RERANK, _SCORE = Shape(RerankBody), Shape(ScoreBody)
_SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


def read_rerank(data: bytes, options: ReaderOptions) -> RerankCall:
    parsed = Body(data)
    warnings, unknown = RERANK.judge(parsed.others(_RERANK.names))
    body = parsed.read(_RERANK)
    documents = _texts(body.documents, "documents")
    return RerankCall(
        model_of(body.model, options),
        _pairs(body, (_not_empty(body.query, "query"),), documents),
        body.top_n or None,
        body.return_documents is not False,
        tuple(warnings),
        unknown,
    )


def read_score(data: bytes, options: ReaderOptions) -> ScoreCall:
    parsed = Body(data)
    warnings, unknown = SCORE.judge(parsed.others(_SCORE.names))
    body = parsed.read(_SCORE)
    first, second = _sides(body)
    if len(first) not in (1, len(second)):
        raise RequestError(
            f"There are {len(first)} texts on one side and {len(second)} on the other: send one text or equal numbers.",
            param="text_1",
            code="invalid_value",
        )
    return ScoreCall(model_of(body.model, options), _pairs(body, first, second), tuple(warnings), unknown)


def _sides(body: ScoreBody) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Raises RequestError unless exactly one pair of names is there."""
    said = {
        "text_1": body.text_1,
        "text_2": body.text_2,
        "queries": body.queries,
        "documents": body.documents,
        "items": body.items,
        "data_1": body.data_1,
        "data_2": body.data_2,
    }
    present = {name: value for name, value in said.items() if value is not None}
    for first, second in _SIDES:
        if present.keys() == {first, second}:
            return _texts(present[first], first), _texts(present[second], second)
    lacking = next((name for name in ("text_1", "text_2") if name not in present), "text_1")
    raise missing(lacking, " Send text_1 and text_2, queries and documents or items, or data_1 and data_2.")


def _pairs(body: Scoring, queries: tuple[str, ...], documents: tuple[str, ...]) -> PairTexts:
    if body.truncate_prompt_tokens == 0:
        raise invalid("truncate_prompt_tokens", "expected -1 or an integer >= 1")
    if body.truncation_side == "left":
        raise Unsupported("'truncation_side' of left is not supported here.", param="truncation_side")
    return PairTexts(
        queries,
        documents,
        body.max_tokens_per_query or None,
        body.max_tokens_per_doc or None,
        body.truncate_prompt_tokens,
        body.use_activation,
    )


def _texts(value: str | Texts, param: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_not_empty(value, param),)
    return tuple(
        _not_empty(each.text if isinstance(each, Document) else each, f"{param}[{index}]")
        for index, each in enumerate(value)
    )


def _not_empty(text: str, param: str) -> str:
    if not text:
        raise invalid(param, "a text must not be empty")
    return text
