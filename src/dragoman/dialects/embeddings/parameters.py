"""The support of every parameter of embeddings."""

from __future__ import annotations

from ..parameter_table import ParameterSupport, ParameterTable, accept, honour, reject

DIALECT = "embeddings"

_SHARED = (
    ("model", "optional if the server has a default model"),
    ("user", "identifies the end user; has no effect"),
    ("truncate_prompt_tokens", "maximum tokens after truncation, including special tokens; -1 is the model's limit"),
    ("truncation_side", "right, the default, keeps the beginning; left keeps the end"),
)
_HONOURED = (
    ("input", "a string, 1 to 2048 strings, token ids, or lists of token ids; ids are used unchanged"),
    ("dimensions", "shortens and renormalises the vector, if the model supports it; otherwise a 400"),
    ("encoding_format", "float, or base64 of little-endian float32 with identical bits"),
    ("add_special_tokens", "true by default; applies to texts, never to token ids"),
    ("normalize", "vectors of length 1; the default is in the model's directory"),
    ("use_activation", "vLLM's current name for normalize"),
)


def build_text_input_rows(dialect: str) -> tuple[ParameterSupport, ...]:
    """The rows of fields that all routes with text input share."""
    return (
        *(row for name, note in _SHARED for row in honour(dialect, name, note=note)),
        *accept(dialect, "request_id", note="the server generates the id"),
        *accept(dialect, "priority", note="requests are processed in turn, input by input"),
        *accept(dialect, "cache_salt", note="vectors are not cached"),
        *reject(dialect, "padding", "padding is not supported", "do_not_pad"),
        *reject(dialect, "mm_processor_kwargs", "only text input is supported", {}),
    )


EMBEDDINGS = ParameterTable(
    (
        *(row for name, note in _HONOURED for row in honour(DIALECT, name, note=note)),
        *build_text_input_rows(DIALECT),
        *reject(DIALECT, "messages", "send the text as `input`"),
        *reject(DIALECT, "embed_dtype", "only float32 is supported", "float32"),
        *reject(DIALECT, "endianness", "only little-endian is supported", "little", "native"),
    )
)
