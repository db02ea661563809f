"""The embeddings APIs of OpenAI (with vLLM's fields) and of Cohere: parses requests and
serializes responses.
"""

from __future__ import annotations

import base64
import struct
from typing import Annotated, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.embeddings import Embeddings, TextInputs
from ..core.errors import RequestError, Unsupported
from .base import Header, Profile, ReaderOptions
from .body import BodySchema, ParsedBody, check_one_of, invalid_value, missing_parameter
from .fields import AtLeastOne, CountOrUnlimited, TokenId, resolve_model
from .json_encoding import replace_surrogates
from .parameter_table import Note, ParameterTable, accept, reject

MAX_INPUTS = 2048
"""OpenAI's limit on the inputs of one request."""

InputList = Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]


class TextInputFields(Struct, frozen=True, kw_only=True):
    """The tokenization fields of all routes with text input. None: the client sent null
    or nothing.
    """

    model: Annotated[str | None, Note("optional if the server has a default model")] = None
    user: Annotated[str | None, Note("identifies the end user; has no effect")] = None
    truncate_prompt_tokens: Annotated[
        CountOrUnlimited | None,
        Note("maximum tokens after truncation, including special tokens; -1 is the model's limit"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None,
        Note("right, the default, keeps the beginning; left keeps the end"),
    ] = None


class EmbeddingsBody(TextInputFields, frozen=True, kw_only=True):
    """An embeddings body.

    input: a text, texts, one text's token ids, or several texts' token ids.
    """

    input: Annotated[
        str | InputList,
        Note(
            "a string, 1 to 2048 strings, token ids, or lists of token ids; ids are used unchanged"
        ),
    ]
    dimensions: Annotated[
        AtLeastOne | None,
        Note("shortens and renormalizes the vector, if the model supports it; otherwise a 400"),
    ] = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Note("float, or base64 of little-endian float32 with identical bits"),
    ] = None
    add_special_tokens: Annotated[
        bool | None, Note("true by default; applies to texts, never to token ids")
    ] = None
    normalize: Annotated[
        bool | None, Note("vectors of length 1; the default is in the model's directory")
    ] = None
    use_activation: Annotated[bool | None, Note("vLLM's current name for normalize")] = None


TEXT_INPUT_ROWS = (
    *accept("request_id", note="the server generates the id"),
    *accept("priority", note="requests are processed in turn, input by input"),
    *accept("cache_salt", note="vectors are not cached"),
    *reject("padding", "padding is not supported", "do_not_pad"),
    *reject("mm_processor_kwargs", "only text input is supported", {}),
)


EMBEDDINGS = ParameterTable(
    "embeddings",
    (EmbeddingsBody,),
    (
        *TEXT_INPUT_ROWS,
        *reject("messages", "send the text as `input`"),
        *reject("embed_dtype", "only float32 is supported", "float32"),
        *reject("endianness", "only little-endian is supported", "little", "native"),
    ),
)


class EmbedCall(Struct, frozen=True):
    """A parsed embeddings request.

    normalize: None is the model's default.
    base64: encode vectors as base64.
    warnings, unknown: as in `GenerationCall`.
    """

    model: str
    texts: TextInputs
    dimensions: int | None = None
    normalize: bool | None = None
    base64: bool = False
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


_BODY = BodySchema(EmbeddingsBody)


def read_embeddings(data: bytes, options: ReaderOptions) -> EmbedCall:
    """Parse a request body. Raises RequestError."""
    parsed = ParsedBody(data)
    warnings, unknown = EMBEDDINGS.classify_body(parsed, _BODY)
    if "input" not in parsed.fields:
        raise missing_parameter("input")
    body = parsed.decode(_BODY)
    if body.normalize is not None and body.use_activation not in (None, body.normalize):
        raise invalid_value(
            "use_activation", "it is an alias of normalize and has a different value"
        )
    return EmbedCall(
        resolve_model(body.model, options),
        build_text_inputs(
            _read_inputs(body.input), body, add_special_tokens=body.add_special_tokens is not False
        ),
        body.dimensions,
        body.use_activation if body.normalize is None else body.normalize,
        body.encoding_format == "base64",
        tuple(warnings),
        unknown,
    )


def build_text_inputs(
    inputs: tuple[str | tuple[int, ...], ...],
    body: TextInputFields,
    *,
    add_special_tokens: bool = True,
) -> TextInputs:
    if body.truncate_prompt_tokens == 0:
        raise invalid_value("truncate_prompt_tokens", "expected -1 or an integer >= 1")
    return TextInputs(
        inputs, body.truncate_prompt_tokens, body.truncation_side == "left", add_special_tokens
    )


def _read_inputs(input: str | InputList) -> tuple[str | tuple[int, ...], ...]:
    """Parse the inputs. Raises RequestError for too many or empty ones, and for a
    mixture of texts and ids.
    """
    if isinstance(input, str):
        return (_require_input(input, "input"),)
    kinds = {type(entry) for entry in input}
    if len(kinds) > 1:
        raise RequestError(
            "Invalid type for 'input': expected strings, integers or lists of integers, but not a "
            "mixture.",
            param="input",
            code="invalid_type",
        )
    # As in the `prompt` of Completions, an array of integers is one input, not several.
    if kinds == {int}:
        return (tuple(cast(list[int], input)),)
    if len(input) > MAX_INPUTS:
        raise invalid_value("input", f"expected at most {MAX_INPUTS} inputs, got {len(input)}")
    entries = cast(list[str | list[int]], input)
    return tuple(_require_input(entry, f"input[{index}]") for index, entry in enumerate(entries))


def _require_input(input: str | list[int], param: str) -> str | tuple[int, ...]:
    if not input:
        raise invalid_value(param, "an input must not be empty")
    return input if isinstance(input, str) else tuple(input)


class PromptUsage(Struct, frozen=True, omit_defaults=True):
    """The usage of a request without generated tokens.

    completion_tokens, prompt_tokens_details: only in vLLM's profile.
    """

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int | UnsetType = UNSET
    prompt_tokens_details: UnsetType | None = UNSET


def build_prompt_usage(prompt_tokens: int, profile: Profile) -> PromptUsage:
    if profile is Profile.VLLM:
        return PromptUsage(prompt_tokens, prompt_tokens, 0, None)
    return PromptUsage(prompt_tokens, prompt_tokens)


class EmbeddingObject(Struct, frozen=True):
    """One vector.

    embedding: numbers, or base64 of little-endian float32.
    """

    index: int
    object: str
    embedding: tuple[float, ...] | str


class EmbeddingsResponse(Struct, frozen=True, omit_defaults=True):
    """The response of /v1/embeddings.

    id, created: only in vLLM's profile.
    """

    object: str
    data: list[EmbeddingObject]
    model: str
    usage: PromptUsage
    id: str | UnsetType = UNSET
    created: int | UnsetType = UNSET


def render_embeddings(
    embeddings: Embeddings, header: Header, profile: Profile, *, as_base64: bool
) -> bytes:
    """Serialize the response. Numbers keep all bits: parsed as a double, each rounds to
    the same float32.
    """
    data: list[EmbeddingObject] = []
    for index, vector in enumerate(embeddings.vectors):
        embedding = (
            base64.b64encode(vector).decode()
            if as_base64
            else struct.unpack(f"<{len(vector) // 4}f", vector)
        )
        data.append(EmbeddingObject(index, "embedding", embedding))
    answer = EmbeddingsResponse(
        "list", data, header.model, build_prompt_usage(embeddings.prompt_tokens, profile)
    )
    if profile is Profile.VLLM:
        answer = msgspec.structs.replace(answer, id=header.id, created=header.created)
    return msgspec.json.encode(answer)


# Cohere's /v2/embed: embeds texts, and can return the vectors in several types at once.

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

    floats: list[tuple[float, ...]] | UnsetType = UNSET
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
    vectors = [struct.unpack(f"<{len(vector) // 4}f", vector) for vector in embeddings.vectors]
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


def _pack_signs(vector: tuple[float, ...], offset: int) -> list[int]:
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
