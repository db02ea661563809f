"""What becomes of every parameter of rerank and of score."""

from __future__ import annotations

from ..embeddings.parameters import build_text_input_rows
from ..parameter_table import ParameterSupport, ParameterTable, honour, reject

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


def _build_table(dialect: str, own_notes: tuple[tuple[str, str], ...], *extra_rows: ParameterSupport) -> ParameterTable:
    own_rows = (row for name, note in (*own_notes, *_SHARED) for row in honour(dialect, name, note=note))
    shared_rows = (row for row in build_text_input_rows(dialect) if row.name != "truncation_side")
    return ParameterTable(
        (
            *own_rows,
            *shared_rows,
            *honour(dialect, "truncation_side", note="only right: documents are cut at their end"),
            *reject(dialect, "instruction", "there is no template to put it in"),
            *reject(dialect, "chat_template_kwargs", "there is no template to put them in", {}),
            *extra_rows,
        )
    )


RERANK = _build_table("rerank", _RERANK, *reject("rerank", "rank_fields", "a document has one text", ["text"], []))
SCORE = _build_table("score", _SCORE)
