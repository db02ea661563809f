"""An embeddings body as it comes: shapes and bounds alone."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ..fields import AtLeastOne, CountOrUnlimited, TokenId

MAX_INPUTS = 2048
"""OpenAI's own bound."""

InputList = Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]


class TextInputFields(Struct, frozen=True, kw_only=True):
    """How a text becomes tokens, for every route that reads texts. None: the client said nothing, or null."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: CountOrUnlimited | None = None
    truncation_side: Literal["left", "right"] | None = None


class EmbeddingsBody(TextInputFields, frozen=True, kw_only=True):
    """input: a text, texts, one text's token ids, or several texts' token ids."""

    input: str | InputList
    dimensions: AtLeastOne | None = None
    encoding_format: Literal["float", "base64"] | None = None
    add_special_tokens: bool | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
