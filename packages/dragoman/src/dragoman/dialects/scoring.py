"""Rerank and score, as in Cohere, Jina, TEI and vLLM: request parsing and response
rendering.

A response has vLLM's fields, a superset of Cohere's and Jina's; a request in TEI's form
gets TEI's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.encoder_requests import RelevanceScores, TextPairs
from ..core.errors import RequestError, Unsupported
from .bounds import Count
from .field_errors import invalid_value, missing_parameter
from .generation_fields import resolve_model
from .interfaces import Header, Profile, ReaderOptions
from .json_body import JsonBody
from .json_encoding import replace_surrogates
from .openai_embeddings import TEXT_INPUT_ROWS, PromptUsage, TextInputFields, build_prompt_usage
from .parameter_table import Note, ParameterTable, reject
from .request_body import BodySchema, ParsedBody

MAX_DOCUMENTS = 10_000
"""Cohere's limit."""


class Document(Struct, frozen=True):
    """A document as an object, as some of Cohere's and Jina's clients send it."""

    text: str


DocumentList = Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class ScoringFields(TextInputFields, frozen=True, kw_only=True):
    """The fields that rerank and score share; 0 tokens is no limit."""

    max_tokens_per_query: Annotated[
        Count | None, Note("maximum tokens of a query; 0 is no limit")
    ] = None
    max_tokens_per_doc: Annotated[
        Count | None, Note("maximum tokens of a document; 0 is no limit")
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None, Note("only right: documents are truncated at the end")
    ] = None
    use_activation: Annotated[
        bool | None, Note("the sigmoid of a cross-encoder; a 400 for cosine similarity")
    ] = None


class RerankBody(ScoringFields, frozen=True, kw_only=True):
    """A rerank body.

    top_n: maximum number of results; 0 and None return all.
    texts: TEI's name of `documents`; the response then has TEI's form. The four fields
        after it are TEI's too.
    """

    query: str
    documents: Annotated[
        DocumentList | None, Note("1 to 10000 strings, or objects with a text")
    ] = None
    top_n: Annotated[Count | None, Note("number of results; 0 and null return all")] = None
    return_documents: Annotated[
        bool | None, Note("true by default, as in vLLM; false omits the texts")
    ] = None
    texts: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)] | None,
        Note(
            "TEI's: 1 to 10000 strings instead of documents; the response is TEI's array of "
            "index, score and text"
        ),
    ] = None
    raw_scores: Annotated[bool | None, Note("TEI's: true omits the sigmoid of a cross-encoder")] = (
        None
    )
    return_text: Annotated[bool | None, Note("TEI's: true returns the texts")] = None
    truncate: Annotated[
        bool | None,
        Note("TEI's: true truncates to the model's limit; otherwise longer pairs are a 400"),
    ] = None
    truncation_direction: Annotated[str | None, Note("TEI's: only right")] = None
    """`left` or `right`, case-insensitive."""


class ScoreBody(ScoringFields, frozen=True, kw_only=True):
    """A score body: two sides under one of four pairs of names."""

    text_1: Annotated[
        str | DocumentList | None,
        Note("a text or a list; a single text is compared with each text of the other side"),
    ] = None
    text_2: Annotated[str | DocumentList | None, Note("a text or a list")] = None
    queries: Annotated[str | DocumentList | None, Note("as text_1, with documents or items")] = None
    documents: Annotated[str | DocumentList | None, Note("as text_2")] = None
    items: Annotated[str | DocumentList | None, Note("as text_2")] = None
    data_1: Annotated[str | DocumentList | None, Note("as text_1")] = None
    data_2: Annotated[str | DocumentList | None, Note("as text_2")] = None


_SHARED_ROWS = (
    *TEXT_INPUT_ROWS,
    *reject("instruction", "scoring uses no template"),
    *reject("chat_template_kwargs", "scoring uses no template", {}),
)


RERANK = ParameterTable(
    "rerank",
    (RerankBody,),
    (
        *_SHARED_ROWS,
        *reject("rank_fields", "documents have one text field", ["text"], []),
    ),
)
SCORE = ParameterTable("score", (ScoreBody,), _SHARED_ROWS)


RERANK_REQUEST = JsonBody(
    "RerankRequest",
    (RerankBody,),
    RERANK,
    example={"query": "capital of Japan", "documents": ["Tokyo", "Rome"]},
)
SCORE_REQUEST = JsonBody(
    "ScoreRequest", (ScoreBody,), SCORE, example={"queries": "Japan", "documents": ["Tokyo"]}
)


class RerankCall(Struct, frozen=True):
    """A parsed rerank request.

    top_n: maximum number of results; None returns all.
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


_RERANK_SCHEMA = BodySchema(RerankBody)
_SCORE_SCHEMA = BodySchema(ScoreBody)
_SIDES = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)


def read_rerank(data: bytes, options: ReaderOptions) -> RerankCall:
    parsed = ParsedBody(data)
    warnings, unknown = RERANK.classify_body(parsed, _RERANK_SCHEMA)
    body = parsed.decode(_RERANK_SCHEMA)
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
    body: RerankBody,
    texts: list[str],
    options: ReaderOptions,
    warnings: tuple[str, ...],
    unknown: tuple[str, ...],
) -> RerankCall:
    """Read the form of Text Embeddings Inference, which names the documents `texts`."""
    if body.documents is not None:
        raise invalid_value("texts", "it cannot be combined with 'documents'")
    direction = (body.truncation_direction or "right").lower()
    if direction not in ("left", "right"):
        raise invalid_value("truncation_direction", "expected 'right'")
    if direction == "left":
        raise Unsupported(
            "'truncation_direction' of left is not supported here.", param="truncation_direction"
        )
    # TEI's name for scores before the sigmoid.
    if body.raw_scores:
        body = msgspec.structs.replace(body, use_activation=False)
    if body.truncate:
        body = msgspec.structs.replace(body, truncate_prompt_tokens=-1)
    pairs = _build_pairs(body, (_require_text(body.query, "query"),), _read_texts(texts, "texts"))
    model = resolve_model(body.model, options)
    return RerankCall(
        model, pairs, body.top_n or None, bool(body.return_text), True, warnings, unknown
    )


def read_score(data: bytes, options: ReaderOptions) -> ScoreCall:
    parsed = ParsedBody(data)
    warnings, unknown = SCORE.classify_body(parsed, _SCORE_SCHEMA)
    body = parsed.decode(_SCORE_SCHEMA)
    texts = {
        name: value
        for name, value in msgspec.structs.asdict(body).items()
        if value is not None and any(name in pair for pair in _SIDES)
    }
    sides = next((pair for pair in _SIDES if texts.keys() == {*pair}), None)
    if sides is None:
        raise missing_parameter(
            "text_2" if "text_1" in texts and "text_2" not in texts else "text_1",
            " Send text_1 and text_2, queries and documents or items, or data_1 and data_2.",
        )
    first, second = [_read_texts(texts[name], name) for name in sides]
    if len(first) not in (1, len(second)):
        raise RequestError(
            f"There are {len(first)} texts on one side and {len(second)} on the other: send one "
            f"text or equal numbers.",
            param="text_1",
            code="invalid_value",
        )
    return ScoreCall(
        resolve_model(body.model, options),
        _build_pairs(body, first, second),
        tuple(warnings),
        unknown,
    )


def _build_pairs(
    body: ScoringFields, queries: tuple[str, ...], documents: tuple[str, ...]
) -> TextPairs:
    if body.truncate_prompt_tokens == 0:
        raise invalid_value("truncate_prompt_tokens", "expected -1 or an integer >= 1")
    if body.truncation_side == "left":
        raise Unsupported(
            "'truncation_side' of left is not supported here.", param="truncation_side"
        )
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


class RerankResponse(Struct, frozen=True):
    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]


class ScoreResult(Struct, frozen=True):
    index: int
    object: str
    score: float


class ScoreResponse(Struct, frozen=True):
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
    top_n: None returns all.
    """
    # The sort is stable and the key negative, not reversed, so documents of equal
    # scores keep their order.
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
    return msgspec.json.encode(RerankResponse(header.id, header.model, usage, results))


class TeiRerankResult(Struct, frozen=True, omit_defaults=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


def render_tei_rerank(
    scores: RelevanceScores, texts: tuple[str, ...] | None, top_n: int | None
) -> bytes:
    """Render results as Text Embeddings Inference does, an array; see `render_rerank`."""
    order = sorted(range(len(scores.scores)), key=lambda index: -scores.scores[index])[:top_n]
    return msgspec.json.encode(
        [
            TeiRerankResult(
                index,
                scores.scores[index],
                UNSET if texts is None else replace_surrogates(texts[index]),
            )
            for index in order
        ]
    )


def render_scores(scores: RelevanceScores, header: Header, profile: Profile) -> bytes:
    data = [ScoreResult(index, "score", score) for index, score in enumerate(scores.scores)]
    usage = build_prompt_usage(scores.prompt_tokens, profile)
    return msgspec.json.encode(
        ScoreResponse(header.id, "list", header.created, header.model, data, usage)
    )
