"""Embeddings and scores: requests and answers that are not streams of events."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from .errors import RequestError, Unsupported


class Pooling(StrEnum):
    """How the vectors of a text's tokens become one."""

    MEAN = "mean"
    CLS = "cls"
    """The first token's."""
    MAX = "max"
    MEAN_SQRT_LEN = "mean_sqrt_len"
    LAST = "last"


class EmbeddingInfo(Struct, frozen=True):
    """What an embedder's vectors are. dimensions: of a whole one. max_tokens: of one input, special tokens included.

    matryoshka: trained so that its first numbers alone are a vector too; matryoshka_dimensions: only these many,
    where any are named. normalized: of length 1 unless a request says otherwise.
    """

    dimensions: int
    max_tokens: int
    pooling: Pooling = Pooling.MEAN
    normalized: bool = True
    matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raises RequestError where vectors of so many dimensions cannot be had."""
        if dimensions is None or dimensions == self.dimensions:
            return
        if dimensions > self.dimensions:
            raise RequestError(f"This model's vectors have {self.dimensions} dimensions.", param="dimensions")
        if not self.matryoshka:
            raise Unsupported(
                f"This model's vectors have {self.dimensions} dimensions and cannot be shortened: it was not trained "
                "for it (matryoshka).",
                param="dimensions",
            )
        if self.matryoshka_dimensions and dimensions not in self.matryoshka_dimensions:
            allowed_dimensions = ", ".join(map(str, self.matryoshka_dimensions))
            raise RequestError(f"This model's vectors can have {allowed_dimensions} dimensions.", param="dimensions")


class TextInputs(Struct, frozen=True):
    """What a client wants read: texts, or their token ids as they are.

    truncate: keep at most so many tokens of an input, special ones included; -1 is what fits, None refuses what does
    not. keep_end: those at the end, instead of those at the beginning. add_special_tokens: around a text, what the
    model's tokenizer puts there.
    """

    inputs: tuple[str | tuple[int, ...], ...]
    truncate: int | None = None
    keep_end: bool = False
    add_special_tokens: bool = True


class EmbedRequest(Struct, frozen=True):
    """inputs: token ids, one tuple an input, none empty or longer than `EmbedTraits.max_tokens`.

    dimensions: keep the first so many and normalise again; checked by `EmbedTraits.check`. normalize: None is the
    model's own way.
    """

    model: str
    inputs: tuple[tuple[int, ...], ...]
    dimensions: int | None = None
    normalize: bool | None = None


class Embeddings(Struct, frozen=True):
    """vectors: little-endian float32 bytes, one an input, all of `dimensions` numbers."""

    vectors: tuple[bytes, ...]
    dimensions: int
    prompt_tokens: int


class TextPairs(Struct, frozen=True):
    """How close is each document to its query? queries: as many as documents, or one for all of them.

    most_query, most_document: tokens that are kept of each; None is all of them. truncate: as in Texts, of a query
    and a document together; it is the document that is cut. activation: as in ScoreRequest.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    max_query_tokens: int | None = None
    max_document_tokens: int | None = None
    truncate: int | None = None
    activation: bool | None = None

    def expand_pairs(self) -> tuple[tuple[str, str], ...]:
        queries = self.queries * len(self.documents) if len(self.queries) == 1 else self.queries
        return tuple(zip(queries, self.documents, strict=True))


class TokenizedPair(Struct, frozen=True):
    """Two texts as one input, special tokens included. second: where the second one's segment begins."""

    ids: tuple[int, ...]
    second_start: int


class ScoreRequest(Struct, frozen=True):
    """activation: whether scores pass the model's last function (a sigmoid, mostly); None is the model's own way."""

    model: str
    pairs: tuple[TokenizedPair, ...]
    activation: bool | None = None


class RelevanceScores(Struct, frozen=True):
    """scores: one a pair; higher is closer."""

    scores: tuple[float, ...]
    prompt_tokens: int
