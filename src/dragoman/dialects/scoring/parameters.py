"""What becomes of every parameter of rerank and of score."""

from __future__ import annotations

from ..embeddings.parameters import reading_rows
from ..support import Rules, Support, honoured, refused

_SHARED = (
    ("max_tokens_per_query", "the first so many tokens of a query; 0 is all of it"),
    ("max_tokens_per_doc", "the first so many tokens of a document; 0 is all of it"),
    ("use_activation", "a cross-encoder's sigmoid; a cosine has none, and a 400 says so"),
)
_RERANK = (
    ("query", ""),
    ("documents", "1 to 10000 strings, or objects with a text"),
    ("top_n", "so many of the best; 0 and null are all of them"),
    ("return_documents", "true by default, as in vLLM; false leaves the texts out"),
)
_SCORE = (
    ("text_1", "a text, or texts; one text is compared with each of the other side"),
    ("text_2", "a text, or texts"),
    ("queries", "as text_1, with documents or items"),
    ("documents", "as text_2"),
    ("items", "as text_2"),
    ("data_1", "as text_1"),
    ("data_2", "as text_2"),
)


def _rules(dialect: str, own: tuple[tuple[str, str], ...], *more: Support) -> Rules:
    told = (row for name, note in (*own, *_SHARED) for row in honoured(dialect, name, note=note))
    shared = (row for row in reading_rows(dialect) if row.name != "truncation_side")
    return Rules(
        (
            *told,
            *shared,
            *honoured(dialect, "truncation_side", note="only right: documents are cut at their end"),
            *refused(dialect, "instruction", "there is no template to put it in"),
            *refused(dialect, "chat_template_kwargs", "there is no template to put them in", {}),
            *more,
        )
    )


RERANK = _rules("rerank", _RERANK, *refused("rerank", "rank_fields", "a document has one text", ["text"], []))
SCORE = _rules("score", _SCORE)
