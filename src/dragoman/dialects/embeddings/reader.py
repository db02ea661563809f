"""A body of /v1/embeddings to what was asked."""

from __future__ import annotations

from typing import cast

from msgspec import Struct

from ...core.embed import Texts
from ...core.errors import RequestError
from ..base import ReaderOptions
from ..body import Body, Shape, invalid, missing
from ..fields import model_of
from .parameters import EMBEDDINGS
from .wire import MAX_INPUTS, EmbeddingsBody, Reading, Several


class EmbedCall(Struct, frozen=True):
    """normalize: None is the model's own way. base64: the form of the vectors. warnings, unknown: as in `Call`."""

    model: str
    texts: Texts
    dimensions: int | None = None
    normalize: bool | None = None
    base64: bool = False
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


_BODY = Shape(EmbeddingsBody)


def read_embeddings(data: bytes, options: ReaderOptions) -> EmbedCall:
    """Raises RequestError."""
    parsed = Body(data)
    warnings, unknown = EMBEDDINGS.judge(parsed.others(_BODY.names))
    if "input" not in parsed.fields:
        raise missing("input")
    body = parsed.read(_BODY)
    return EmbedCall(
        model_of(body.model, options),
        texts_of(_inputs(body.input), body, add_special_tokens=body.add_special_tokens is not False),
        body.dimensions,
        _normalize(body),
        body.encoding_format == "base64",
        tuple(warnings),
        unknown,
    )


def texts_of(inputs: tuple[str | tuple[int, ...], ...], body: Reading, *, add_special_tokens: bool = True) -> Texts:
    if body.truncate_prompt_tokens == 0:
        raise invalid("truncate_prompt_tokens", "expected -1 or an integer >= 1")
    return Texts(inputs, body.truncate_prompt_tokens, body.truncation_side == "left", add_special_tokens)


def _inputs(input: str | Several) -> tuple[str | tuple[int, ...], ...]:
    """Raises RequestError for too many, for empty ones, and for texts and ids in one list."""
    if isinstance(input, str):
        return (_not_empty(input, "input"),)
    kinds = {type(each) for each in input}
    if len(kinds) > 1:
        raise RequestError(
            "Invalid type for 'input': expected strings, integers or lists of integers, but not a mixture.",
            param="input",
            code="invalid_type",
        )
    if kinds == {int}:
        return (tuple(cast(list[int], input)),)
    if len(input) > MAX_INPUTS:
        raise invalid("input", f"expected at most {MAX_INPUTS} inputs, got {len(input)}")
    listed = cast(list[str | list[int]], input)
    return tuple(_not_empty(each, f"input[{index}]") for index, each in enumerate(listed))


def _not_empty(input: str | list[int], param: str) -> str | tuple[int, ...]:
    if not input:
        raise invalid(param, "an input must not be empty")
    return input if isinstance(input, str) else tuple(input)


def _normalize(body: EmbeddingsBody) -> bool | None:
    if body.normalize is not None and body.use_activation not in (None, body.normalize):
        raise invalid("use_activation", "it is an alias of normalize and has a different value")
    return body.use_activation if body.normalize is None else body.normalize
