"""A tokenizer in the form that llguidance reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ..core.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

    Tools = tuple[llguidance.LLTokenizer, llguidance.LLParserLimits]
    """The vocabulary in llguidance's form, and the limits of each parser step."""


class GrammarVocabulary:
    """A tokenizer in the form that llguidance reads (see its TokenizerWrapper).

    Control tokens are special tokens there, so no text in a grammar matches one.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self,
        tokens: list[bytes],
        special: list[int],
        eos: list[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos = eos
        self.eos_token_id = eos[0]
        self._encode = encode

    @classmethod
    def of(cls, tokenizer: Tokenizer, eos: Sequence[int], vocab_size: int) -> GrammarVocabulary:
        size = max(tokenizer.vocab_size, vocab_size, *(id + 1 for id in eos))
        special = tokenizer.special_tokens
        return cls(
            [tokenizer.token_bytes(id) for id in range(size)],
            sorted({special[name] for name in find_control_tokens(special)} | set(eos)),
            list(eos),
            lambda text: tokenizer.encode(text, special=False),
        )

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


def find_control_tokens(special_tokens: Iterable[str]) -> list[str]:
    """Return the added tokens that never occur in ordinary text.

    Blank and one-character tokens are excluded: some vocabularies add them as plain
    text.
    """
    return [name for name in special_tokens if len(name) > 1 and not name.isspace()]
