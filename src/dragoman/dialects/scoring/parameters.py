"""What becomes of every parameter of rerank and of score."""

from __future__ import annotations

from ..embeddings.parameters import reading_rows
from ..support import Rules, Support, honoured, refused

_SHARED = (
    ("max_tokens_per_query", "maximum tokens of a query; 0 is no limit"),
    ("max_tokens_per_doc", "maximum tokens of a document; 0 is no limit"),
    ("use_activation", "the sigmoid of a cross-encoder; a 400 for cosine similarity"),
)
_RERANK = (
    ("query", ""),
    ("documents", "1 to 10000 strings, or objects with a text"),
    ("top_n", "number of results; 0 and null return all"),
    ("return_documents", "true by default, as in vLLM; false omits the texts"),
)
_SCORE = (
    ("text_1", "a text or a list; a single text is compared with each text of the other side"),
    ("text_2", "a text or a list"),
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
            *honoured(dialect, "truncation_side", note="only right: documents are truncated at the end"),
            *refused(dialect, "instruction", "scoring uses no template"),
            *refused(dialect, "chat_template_kwargs", "scoring uses no template", {}),
            *more,
        )
    )


RERANK = _rules("rerank", _RERANK, *refused("rerank", "rank_fields", "documents have one text field", ["text"], []))
SCORE = _rules("score", _SCORE)
