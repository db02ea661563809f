"""The support of every parameter of rerank and score."""

from __future__ import annotations

from ..embeddings.parameters import build_text_input_rows
from ..parameter_table import ParameterSupport, ParameterTable, honour, reject

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
    ("texts", "TEI's: 1 to 10000 strings instead of documents; the response is TEI's array of index, score and text"),
    ("raw_scores", "TEI's: true omits the sigmoid of a cross-encoder"),
    ("return_text", "TEI's: true returns the texts"),
    ("truncate", "TEI's: true truncates to the model's limit; otherwise longer pairs are a 400"),
    ("truncation_direction", "TEI's: only right"),
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


def _build_table(dialect: str, own_notes: tuple[tuple[str, str], ...], *extra_rows: ParameterSupport) -> ParameterTable:
    own_rows = (row for name, note in (*own_notes, *_SHARED) for row in honour(dialect, name, note=note))
    shared_rows = (row for row in build_text_input_rows(dialect) if row.name != "truncation_side")
    return ParameterTable(
        (
            *own_rows,
            *shared_rows,
            *honour(dialect, "truncation_side", note="only right: documents are truncated at the end"),
            *reject(dialect, "instruction", "scoring uses no template"),
            *reject(dialect, "chat_template_kwargs", "scoring uses no template", {}),
            *extra_rows,
        )
    )


RERANK = _build_table(
    "rerank", _RERANK, *reject("rerank", "rank_fields", "documents have one text field", ["text"], [])
)
SCORE = _build_table("score", _SCORE)
