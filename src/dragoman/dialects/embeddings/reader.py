"""Parses a body of /v1/embeddings."""

from __future__ import annotations

from typing import cast

from msgspec import Struct

from ...core.embeddings import TextInputs
from ...core.errors import RequestError
from ..base import ReaderOptions
from ..body import BodySchema, ParsedBody, invalid_value, missing_parameter
from ..fields import resolve_model
from .parameters import EMBEDDINGS
from .wire import MAX_INPUTS, EmbeddingsBody, InputList, TextInputFields


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
    """Parse a body. Raises RequestError."""
    parsed = ParsedBody(data)
    warnings, unknown = EMBEDDINGS.classify_body(parsed, _BODY)
    if "input" not in parsed.fields:
        raise missing_parameter("input")
    body = parsed.decode(_BODY)
    if body.normalize is not None and body.use_activation not in (None, body.normalize):
        raise invalid_value("use_activation", "it is an alias of normalize and has a different value")
    return EmbedCall(
        resolve_model(body.model, options),
        build_text_inputs(_read_inputs(body.input), body, add_special_tokens=body.add_special_tokens is not False),
        body.dimensions,
        body.use_activation if body.normalize is None else body.normalize,
        body.encoding_format == "base64",
        tuple(warnings),
        unknown,
    )


def build_text_inputs(
    inputs: tuple[str | tuple[int, ...], ...], body: TextInputFields, *, add_special_tokens: bool = True
) -> TextInputs:
    if body.truncate_prompt_tokens == 0:
        raise invalid_value("truncate_prompt_tokens", "expected -1 or an integer >= 1")
    return TextInputs(inputs, body.truncate_prompt_tokens, body.truncation_side == "left", add_special_tokens)


def _read_inputs(input: str | InputList) -> tuple[str | tuple[int, ...], ...]:
    """Read the inputs. Raises RequestError for too many or empty ones, and for a mixture of texts and ids."""
    if isinstance(input, str):
        return (_require_input(input, "input"),)
    kinds = {type(entry) for entry in input}
    if len(kinds) > 1:
        raise RequestError(
            "Invalid type for 'input': expected strings, integers or lists of integers, but not a mixture.",
            param="input",
            code="invalid_type",
        )
    # As with prompts: integers are the ids of one input, not several inputs.
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
