"""OpenAI's embeddings API, with vLLM's fields."""

from __future__ import annotations

import base64
from typing import Annotated, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from ..core.encoder_requests import Embeddings, TextInputs
from ..core.errors import RequestError
from .bounds import AtLeastOne, CountOrUnlimited, TokenId
from .field_errors import invalid_value, missing_parameter
from .generation_fields import resolve_model
from .interfaces import Header, Profile, ReaderOptions
from .json_body import JsonBody
from .parameter_table import Note, ParameterTable, accept, reject
from .request_body import BodySchema, ParsedBody
from .vector_numbers import list_numbers

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


class EmbeddingsInput(Struct, frozen=True, kw_only=True):
    """The field of an embeddings body that differs from one request to the next.

    input: a text, texts, one text's token ids, or several texts' token ids.
    """

    input: Annotated[
        str | InputList,
        Note(
            "a string, 1 to 2048 strings, token ids, or lists of token ids; ids are used unchanged"
        ),
    ]


class EmbeddingsBody(TextInputFields, frozen=True, kw_only=True):
    """The other fields of an embeddings body."""

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
    (EmbeddingsInput, EmbeddingsBody),
    (
        *TEXT_INPUT_ROWS,
        *reject("messages", "send the text as `input`"),
        *reject("embed_dtype", "only float32 is supported", "float32"),
        *reject("endianness", "only little-endian is supported", "little", "native"),
    ),
)


EMBEDDING_REQUEST = JsonBody(
    "EmbeddingRequest",
    (EmbeddingsInput, EmbeddingsBody),
    EMBEDDINGS,
    example={"input": "Hello"},
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


_INPUT = BodySchema(EmbeddingsInput)
_BODY = BodySchema(EmbeddingsBody)


def read_embeddings(data: bytes, options: ReaderOptions) -> EmbedCall:
    """Parse a request body. Raises RequestError."""
    parsed = ParsedBody(data)
    # What all other fields say, as a call without inputs.
    plan = options.plans.find_or_build(
        EmbedCall,
        parsed.fields,
        EmbeddingsInput.__struct_fields__,
        (options,),
        lambda fields: _build_plan(fields, options),
    )
    if "input" not in parsed.fields:
        raise missing_parameter("input")
    inputs = _read_inputs(parsed.decode(_INPUT).input)
    return replace(plan, texts=replace(plan.texts, inputs=inputs))


def _build_plan(data: bytes, options: ReaderOptions) -> EmbedCall:
    """data: the body without `input`."""
    parsed = ParsedBody(data)
    warnings, unknown = EMBEDDINGS.classify_body(parsed, _BODY)
    body = parsed.decode(_BODY)
    if body.normalize is not None and body.use_activation not in (None, body.normalize):
        raise invalid_value(
            "use_activation", "it is an alias of normalize and has a different value"
        )
    return EmbedCall(
        resolve_model(body.model, options),
        build_text_inputs((), body, add_special_tokens=body.add_special_tokens is not False),
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
    embedding: list[float] | str


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
    """Serialize the response. Numbers keep all bits, see `list_numbers`."""
    data: list[EmbeddingObject] = []
    for index, vector in enumerate(embeddings.vectors):
        embedding = base64.b64encode(vector).decode() if as_base64 else list_numbers(vector)
        data.append(EmbeddingObject(index, "embedding", embedding))
    answer = EmbeddingsResponse(
        "list", data, header.model, build_prompt_usage(embeddings.prompt_tokens, profile)
    )
    if profile is Profile.VLLM:
        answer = replace(answer, id=header.id, created=header.created)
    return msgspec.json.encode(answer)
