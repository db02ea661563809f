"""The structs of an embeddings body: shapes and bounds only."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ..fields import AtLeastOne, CountOrUnlimited, TokenId

MAX_INPUTS = 2048
"""OpenAI's limit."""

InputList = Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]


class TextInputFields(Struct, frozen=True, kw_only=True):
    """The tokenization fields of all routes with text input. None: the client sent null or nothing."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: CountOrUnlimited | None = None
    truncation_side: Literal["left", "right"] | None = None


class EmbeddingsBody(TextInputFields, frozen=True, kw_only=True):
    """An embeddings body.

    input: a text, texts, one text's token ids, or several texts' token ids.
    """

    input: str | InputList
    dimensions: AtLeastOne | None = None
    encoding_format: Literal["float", "base64"] | None = None
    add_special_tokens: bool | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
