"""What becomes of every parameter of embeddings."""

from __future__ import annotations

from ..support import Rules, Support, accepted, honoured, refused

DIALECT = "embeddings"

_READING = (
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


def reading_rows(dialect: str) -> tuple[Support, ...]:
    """Of the fields that every route has that reads texts."""
    return (
        *(row for name, note in _READING for row in honoured(dialect, name, note=note)),
        *accepted(dialect, "request_id", note="an answer's id here is its own"),
        *accepted(dialect, "priority", note="calls take turns, input by input"),
        *accepted(dialect, "cache_salt", note="vectors are not cached"),
        *refused(dialect, "padding", "texts are not padded", "do_not_pad"),
        *refused(dialect, "mm_processor_kwargs", "only text is read", {}),
    )


EMBEDDINGS = Rules(
    (
        *(row for name, note in _HONOURED for row in honoured(DIALECT, name, note=note)),
        *reading_rows(DIALECT),
        *refused(DIALECT, "messages", "send the text as `input`"),
        *refused(DIALECT, "embed_dtype", "vectors are float32", "float32"),
        *refused(DIALECT, "endianness", "vectors are little-endian", "little", "native"),
    )
)
