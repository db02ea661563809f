"""Requests to models that embed or score texts, with their results.

They are no event streams. The interfaces of the models are in `encoder`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from .errors import RequestError, Unsupported
from .trace_context import SpanContext


class Pooling(StrEnum):
    """The method that combines the vectors of a text's tokens into one."""

    MEAN = "mean"
    CLS = "cls"
    """The vector of the first token."""
    MAX = "max"
    MEAN_SQRT_LEN = "mean_sqrt_len"
    WEIGHTED_MEAN = "weighted_mean"
    """The mean with the weights 1, 2, 3, ..."""
    LAST = "last"


class Similarity(StrEnum):
    """The function that compares two embeddings; larger is more similar."""

    COSINE = "cosine"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    """The negative distance."""
    MANHATTAN = "manhattan"
    """The negative sum of the differences."""


class EmbeddingInfo(Struct, frozen=True):
    """The properties of an embedder's vectors.

    dimensions: length of a full vector.
    max_tokens: limit of one input, special tokens included.
    normalized: vectors have length 1 unless a request overrides it.
    matryoshka: the first numbers of a vector alone are a valid vector
        (arXiv:2205.13147).
    matryoshka_dimensions: the only permitted lengths; empty permits all.
    prompt: text that the model expects before every text, `default_prompt_name` of
        sentence-transformers.
    query_prompt, document_prompt: text that it expects before a query or a document
        that are compared with each other.
    similarity: how they are compared.
    """

    dimensions: int
    max_tokens: int
    pooling: Pooling = Pooling.MEAN
    normalized: bool = True
    matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    prompt: str = ""
    query_prompt: str = ""
    document_prompt: str = ""
    similarity: Similarity = Similarity.COSINE

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raise RequestError if the model cannot return vectors of this length."""
        if dimensions is None or dimensions == self.dimensions:
            return
        if dimensions > self.dimensions:
            raise RequestError(
                f"This model's vectors have {self.dimensions} dimensions.", param="dimensions"
            )
        if not self.matryoshka:
            raise Unsupported(
                f"This model's vectors have {self.dimensions} dimensions and cannot be shortened: "
                f"the model was not "
                "trained for it (matryoshka).",
                param="dimensions",
            )
        # The lengths the model was trained for; others would give vectors of unknown
        # quality.
        if self.matryoshka_dimensions and dimensions not in self.matryoshka_dimensions:
            allowed_dimensions = ", ".join(map(str, self.matryoshka_dimensions))
            raise RequestError(
                f"This model's vectors can have {allowed_dimensions} dimensions.",
                param="dimensions",
            )


class EncodingTask(StrEnum):
    """A kind of result that a model computes from texts without generating any."""

    EMBEDDINGS = "embeddings"
    SCORING = "scoring"


class TextInputs(Struct, frozen=True):
    """The inputs of an embedding request before tokenization: texts, or token ids as
    they are.

    truncate: maximum tokens of an input, special tokens included; -1 is the model's
        limit, None rejects longer inputs.
    keep_end: truncate at the beginning instead of at the end.
    add_special_tokens: add the special tokens that the model's tokenizer puts around a
        text.
    """

    inputs: tuple[str | tuple[int, ...], ...]
    truncate: int | None = None
    keep_end: bool = False
    add_special_tokens: bool = True


class TextEmbedRequest(Struct, frozen=True):
    """An embedding request before tokenization.

    dimensions, normalize: as in EmbedRequest, but not checked yet.
    trace: as in GenerateRequest.
    """

    model: str
    texts: TextInputs
    dimensions: int | None = None
    normalize: bool | None = None
    trace: SpanContext | None = None


class EmbedRequest(Struct, frozen=True):
    """A tokenized embedding request.

    inputs: token ids, one tuple for each input, none empty or longer than
        `EmbeddingInfo.max_tokens`.
    dimensions: truncate vectors to this length and normalize again; checked by
        `EmbeddingInfo.check_dimensions`.
    normalize: None is the model's default.
    """

    model: str
    inputs: tuple[tuple[int, ...], ...]
    dimensions: int | None = None
    normalize: bool | None = None


class Embeddings(Struct, frozen=True):
    """The result of an embedding request.

    vectors: little-endian float32 bytes, one for each input, each of `dimensions`
        numbers.
    """

    vectors: tuple[bytes, ...]
    dimensions: int
    prompt_tokens: int


class TextPairs(Struct, frozen=True):
    """Queries and documents whose relevance is to be scored.

    queries: one for each document, or one for all of them.
    max_query_tokens, max_document_tokens: truncate each text to this many tokens; None
        is unlimited.
    truncate: as in TextInputs, for query and document together; only the document is
        truncated.
    activation: as in ScoreRequest.
    trace: as in GenerateRequest.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    max_query_tokens: int | None = None
    max_document_tokens: int | None = None
    truncate: int | None = None
    activation: bool | None = None
    trace: SpanContext | None = None

    def expand_pairs(self) -> tuple[tuple[str, str], ...]:
        queries = self.queries * len(self.documents) if len(self.queries) == 1 else self.queries
        return tuple(zip(queries, self.documents, strict=True))


class TokenizedPair(Struct, frozen=True):
    """Two texts as one input, special tokens included.

    types: the token type (segment) of each, as the tokenizer gives it; a model may
        not distinguish them.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...]


class ScoreRequest(Struct, frozen=True):
    """A tokenized scoring request.

    activation: apply the model's output activation (usually a sigmoid) to the scores;
        None is the model's default.
    """

    model: str
    pairs: tuple[TokenizedPair, ...]
    activation: bool | None = None


class RelevanceScores(Struct, frozen=True):
    """The result of a scoring request.

    scores: one for each pair; higher is more relevant.
    """

    scores: tuple[float, ...]
    prompt_tokens: int
