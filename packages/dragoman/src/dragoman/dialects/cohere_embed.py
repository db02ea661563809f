"""Cohere's /v2/embed: embeds texts, and can return the vectors in several types at
once.
"""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.encoder_requests import Embeddings, TextInputs
from ..core.errors import Unsupported
from .bounds import AtLeastOne
from .field_errors import check_one_of, invalid_value, missing_parameter
from .generation_fields import resolve_model
from .interfaces import Header, ReaderOptions
from .json_body import JsonBody
from .json_encoding import replace_surrogates
from .parameter_table import Note, ParameterTable, accept, reject
from .request_body import BodySchema, ParsedBody
from .vector_numbers import list_numbers

MAX_TEXTS = 2048
"""The same as for `/v1/embeddings`; Cohere's own limit is 96."""


EMBEDDING_TYPES = ("float", "binary", "ubinary", "base64")


class CohereContent(Struct, frozen=True):
    type: str
    text: str | None = None


class CohereInput(Struct, frozen=True):
    content: list[CohereContent]


class CohereEmbedBody(Struct, frozen=True, kw_only=True):
    model: Annotated[str | None, Note("optional if the server has a default model")] = None
    texts: Annotated[
        Annotated[list[str], Meta(max_length=MAX_TEXTS)] | None,
        Note("1 to 2048 strings, or inputs"),
    ] = None
    inputs: Annotated[
        Annotated[list[CohereInput], Meta(max_length=MAX_TEXTS)] | None,
        Note("objects with content of text parts, instead of texts"),
    ] = None
    embedding_types: Annotated[
        list[str] | None,
        Note(
            "float (the default), binary, ubinary, base64 of little-endian float32; int8 and "
            "uint8 are a 400"
        ),
    ] = None
    output_dimension: Annotated[
        AtLeastOne | None,
        Note("shortens and renormalizes the vector, if the model supports it; otherwise a 400"),
    ] = None
    truncate: Annotated[
        Literal["NONE", "START", "END"] | None,
        Note("END (the default) and START cut long texts; with NONE they are a 400"),
    ] = None
    max_tokens: Annotated[AtLeastOne | None, Note("maximum tokens of a text after truncation")] = (
        None
    )


COHERE_EMBED = ParameterTable(
    "cohere_embed",
    (CohereEmbedBody,),
    (
        *accept(
            "input_type", note="no prefix is added: put one into the texts if the model needs it"
        ),
        *accept("priority", note="requests are processed in turn, input by input"),
        *reject("images", "only text input is supported", []),
    ),
)


COHERE_REQUEST = JsonBody(
    "CohereEmbedRequest", (CohereEmbedBody,), COHERE_EMBED, example={"texts": ["Hello"]}
)


class CohereEmbedCall(Struct, frozen=True):
    """A parsed request of /v2/embed.

    texts: the texts to embed, which the response echoes.
    types: the requested embedding types, without duplicates.
    warnings, unknown: as in `GenerationCall`.
    """

    model: str
    texts: TextInputs
    dimensions: int | None
    types: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


_COHERE_BODY = BodySchema(CohereEmbedBody)


def read_cohere_embed(data: bytes, options: ReaderOptions) -> CohereEmbedCall:
    """Parse a request body. Raises RequestError."""
    parsed = ParsedBody(data)
    warnings, unknown = COHERE_EMBED.classify_body(parsed, _COHERE_BODY)
    body = parsed.decode(_COHERE_BODY)
    if body.texts is not None and body.inputs is not None:
        raise invalid_value("inputs", "it cannot be combined with 'texts'")
    texts = tuple(body.texts or ())
    if not texts:
        for i, entry in enumerate(body.inputs or ()):
            for j, part in enumerate(entry.content):
                if part.type != "text":
                    raise Unsupported(
                        "Only text input is supported.", param=f"inputs[{i}].content[{j}].type"
                    )
            texts += ("".join(part.text or "" for part in entry.content),)
    if not texts:
        raise missing_parameter("texts")
    for index, text in enumerate(texts):
        if not text:
            raise invalid_value(f"texts[{index}]", "a text must not be empty")
    for index, kind in enumerate(body.embedding_types or ()):
        check_one_of(kind, EMBEDDING_TYPES, f"embedding_types[{index}]")
    # Cohere truncates long texts by default; with NONE they are an error.
    limit = None if body.truncate == "NONE" else body.max_tokens or -1
    return CohereEmbedCall(
        resolve_model(body.model, options),
        TextInputs(texts, limit, body.truncate == "START"),
        body.output_dimension,
        tuple(dict.fromkeys(body.embedding_types or ("float",))),
        tuple(warnings),
        unknown,
    )


class CohereVectors(Struct, frozen=True, rename={"floats": "float"}):
    """The vectors by type. `floats` is `float` on the wire: that name would shadow the
    type in annotations.
    """

    floats: list[list[float]] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET


class CohereApiVersion(Struct, frozen=True):
    version: str = "2"


class CohereBilledUnits(Struct, frozen=True):
    input_tokens: int


class CohereMeta(Struct, frozen=True):
    api_version: CohereApiVersion
    billed_units: CohereBilledUnits


class CohereEmbedResponse(Struct, frozen=True):
    id: str
    embeddings: CohereVectors
    texts: list[str]
    meta: CohereMeta
    response_type: str = "embeddings_by_type"


def render_cohere_embed(embeddings: Embeddings, header: Header, call: CohereEmbedCall) -> bytes:
    vectors = [list_numbers(vector) for vector in embeddings.vectors]
    by_type = CohereVectors(
        floats=vectors if "float" in call.types else UNSET,
        # Cohere's `binary` is `ubinary` minus 128, so that each byte is a signed 8-bit
        # integer.
        binary=[_pack_signs(vector, 128) for vector in vectors]
        if "binary" in call.types
        else UNSET,
        ubinary=[_pack_signs(vector, 0) for vector in vectors]
        if "ubinary" in call.types
        else UNSET,
        base64=[base64.b64encode(vector).decode() for vector in embeddings.vectors]
        if "base64" in call.types
        else UNSET,
    )
    meta = CohereMeta(CohereApiVersion(), CohereBilledUnits(embeddings.prompt_tokens))
    texts = [replace_surrogates(text) for text in call.texts.inputs if isinstance(text, str)]
    return msgspec.json.encode(CohereEmbedResponse(header.id, by_type, texts, meta))


def _pack_signs(vector: list[float], offset: int) -> list[int]:
    """Pack one bit for each number into bytes: 0 if it is negative, as in vLLM; the
    first number is the highest bit.

    offset: subtracted from each byte; 128 makes them signed.
    """
    padded = [*vector, *[-1.0] * (-len(vector) % 8)]
    return [
        sum((number >= 0) << (7 - bit) for bit, number in enumerate(padded[start : start + 8]))
        - offset
        for start in range(0, len(padded), 8)
    ]
