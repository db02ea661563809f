"""What becomes of every parameter of embeddings."""

from __future__ import annotations

from ..parameter_table import ParameterSupport, ParameterTable, accept, honour, reject

DIALECT = "embeddings"

_SHARED = (
    ("model", "optional where the server has a default model"),
    ("user", "identifies the end user; nothing here depends on it"),
    ("truncate_prompt_tokens", "keeps at most so many tokens, special ones included; -1 what fits"),
    ("truncation_side", "right, the default, keeps the beginning; left keeps the end"),
)
_HONOURED = (
    ("input", "a string, 1 to 2048 strings, token ids, or lists of token ids; ids are used as they are"),
    ("dimensions", "shortens and normalises again, where the model was trained for it; else a 400"),
    ("encoding_format", "float, or base64 of little-endian float32, of the same bits"),
    ("add_special_tokens", "true by default; around texts, never around token ids"),
    ("normalize", "vectors of length 1; by default what the model's directory says"),
    ("use_activation", "vLLM's present name for normalize"),
)


def build_text_input_rows(dialect: str) -> tuple[ParameterSupport, ...]:
    """Of the fields that every route has that reads texts."""
    return (
        *(row for name, note in _SHARED for row in honour(dialect, name, note=note)),
        *accept(dialect, "request_id", note="an answer's id here is its own"),
        *accept(dialect, "priority", note="calls take turns, input by input"),
        *accept(dialect, "cache_salt", note="vectors are not cached"),
        *reject(dialect, "padding", "texts are not padded", "do_not_pad"),
        *reject(dialect, "mm_processor_kwargs", "only text is read", {}),
    )


EMBEDDINGS = ParameterTable(
    (
        *(row for name, note in _HONOURED for row in honour(DIALECT, name, note=note)),
        *build_text_input_rows(DIALECT),
        *reject(DIALECT, "messages", "send the text as `input`"),
        *reject(DIALECT, "embed_dtype", "vectors are float32", "float32"),
        *reject(DIALECT, "endianness", "vectors are little-endian", "little", "native"),
    )
)
