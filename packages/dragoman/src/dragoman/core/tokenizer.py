"""The interface of a tokenizer, in this process or on another server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from .request import GenerateRequest


class RemoteTokens(Struct, frozen=True):
    """The token ids of a prompt.

    texts: the text of each token; None unless requested.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...] | None = None


@runtime_checkable
class RemoteTokenizer(Protocol):
    """An event engine without a tokenizer of its own that can have another server
    tokenize.
    """

    async def tokenize_prompt(
        self, request: GenerateRequest, *, with_texts: bool = False
    ) -> RemoteTokens:
        """Tokenize a text, or a conversation that is rendered first. Raises
        RequestError.
        """
        ...

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        """Return the text of these ids, control tokens included. Raises RequestError."""
        ...


class Tokenizer(Protocol):
    """Encodes text and decodes ids. Thread-safe."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """All added tokens, by their text."""
        ...

    @property
    def longest_token(self) -> int:
        """Length in bytes of the longest token's text: the upper bound for n tokens is
        n times this.
        """
        ...

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        """Encode a text.

        special: parse the names of added tokens in the text as those tokens.
        add_special_tokens: as in transformers: add what the post-processor puts around
            a text (a BOS).
        """
        ...

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that this id contributes to a text; for an added token,
        those of its name.
        """
        ...

    def is_special(self, id: int) -> bool: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...
