"""A Hugging Face `tokenizer.json` as the core's Tokenizer. Knows nothing of templates, models or requests.

Two tokenizers are made of one file: a whole one, and a plain one that has never heard of the control tokens, so
that user text cannot become one by whatever spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, NoReturn

import msgspec
import tokenizers
from tokenizers import models

from ..core.errors import RequestError
from . import vocabulary
from .controls import ControlTokens
from .spelling import Spellings
from .vocabulary import AddedToken, TokenizerError

__all__ = ["Frame", "HfTokenizer", "TokenizerError", "load_tokenizer"]


LONG = 16_384
"""Characters from which on others would notice that they wait."""


class Frame(msgspec.Struct, frozen=True):
    """The special tokens that a tokenizer puts around one text, and around and between two."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    before_two: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after_two: tuple[int, ...] = ()


class HfTokenizer:
    """See `core.engine.Tokenizer`. Its library lets go of the GIL while it encodes."""

    def __init__(self, data: bytes | str, more: Sequence[AddedToken] = (), *, writes: bool = True) -> None:
        """data: the content of a tokenizer.json; more: added tokens that it lacks. Raises TokenizerError.

        writes: answers are made of its tokens, of which the bytes must be known then.
        """
        parsed = vocabulary.with_added(vocabulary.parse(data), more)
        read = vocabulary.byte_reader(parsed) if writes else vocabulary.name_reader(parsed)
        self._whole = _build(parsed)
        added = _numbered(vocabulary.added_tokens(parsed), self._whole)
        controls = tuple(token for token in added if token.is_control)
        plain = vocabulary.without_controls(parsed, controls, token_hex(8))
        inner = vocabulary.never_prepending(plain)
        self._plain = _build(plain)
        self._inner = self._plain if inner is None else _build(inner)
        self._scanner, self._scanned = _scanner(controls)
        self._special_tokens = MappingProxyType({token.content: token.id for token in added})
        self._special_ids = frozenset(token.id for token in added if token.special)
        self._bytes = _table(self._whole, added, read)
        self._spells_controls = vocabulary.spells(parsed, controls)
        self._longest = max(map(len, self._bytes), default=1)
        self._control_ids = frozenset(token.id for token in controls)
        self.controls = ControlTokens(token.content for token in controls)
        self.frame = _frame(self._whole)

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return len(self._bytes)

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self._special_tokens

    @property
    def longest_token(self) -> int:
        return self._longest

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        """special=False never gives a control token (see `vocabulary`), whatever the text says.

        Raises RequestError for text that is not Unicode (a lone surrogate).
        """
        tokenizer = self._whole if special else self._plain
        return _encode(tokenizer, text, add_special_tokens).ids

    @property
    def control_ids(self) -> frozenset[int]:
        """Of the tokens that `controls` names."""
        return self._control_ids

    def encode_marked(self, text: str, mark: str, spelled: Spellings | None = None) -> list[int]:
        """Encode text in which names of control tokens count, but not those that hold a mark.

        The marks vanish. A control token of one character does not count where a mark stands before it.
        Text without marks is encoded as transformers would, unless the vocabulary's own model could make a control
        token of text that merely normalises to its name. spelled: pieces between control tokens that keep their ids.
        """
        if spelled is None and mark not in text and not self._spells_controls:
            return self.encode(text, special=True)
        ids: list[int] = []
        done = 0
        for start, end, id in self._control_spans(text):
            if end - start == 1 and text[start - 1 : start] == mark:
                continue
            ids += self._piece(text[done:start], mark, spelled, first=done == 0)
            ids.append(id)
            done = end
        ids += self._piece(text[done:], mark, spelled, first=done == 0)
        return ids

    def token_bytes(self, id: int) -> bytes:
        """Nothing for ids that no token has."""
        return self._bytes[id] if 0 <= id < len(self._bytes) else b""

    def is_special(self, id: int) -> bool:
        """Marked `special` by the vocabulary: what `skip_special_tokens` means. Other added tokens are text."""
        return id in self._special_ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        known = [id for id in ids if 0 <= id < len(self._bytes)]
        return self._whole.decode(known, skip_special_tokens=skip_special_tokens)

    def _control_spans(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each control token, with the blanks that it swallows."""
        found = _encode(self._scanner, text, False)
        for number, (start, end) in zip(found.ids, found.offsets, strict=True):
            if number:
                yield start, end, self._scanned[number]

    def _piece(self, text: str, mark: str, spelled: Spellings | None, *, first: bool) -> Sequence[int]:
        text = text.replace(mark, "")
        known = None if spelled is None or not text else spelled.take(text)
        return _encode(self._plain if first else self._inner, text, False).ids if known is None else known


def load_tokenizer(directory: Path, *, writes: bool = True) -> HfTokenizer:
    """Read `tokenizer.json`, and from `tokenizer_config.json` (if there) the added tokens that it lacks.

    writes: as in HfTokenizer.

    Raises TokenizerError, FileNotFoundError.
    """
    config = directory / "tokenizer_config.json"
    more = _config_tokens(config.read_bytes()) if config.is_file() else ()
    return HfTokenizer((directory / "tokenizer.json").read_bytes(), more, writes=writes)


class _Config(msgspec.Struct):
    added_tokens_decoder: dict[str, dict[str, Any]] = {}


def _config_tokens(raw: bytes) -> tuple[AddedToken, ...]:
    try:
        entries = msgspec.json.decode(raw, type=_Config).added_tokens_decoder
        return tuple(msgspec.convert({**entry, "id": int(id)}, AddedToken) for id, entry in entries.items())
    except (msgspec.MsgspecError, ValueError) as error:
        raise TokenizerError(f"tokenizer_config.json: {error}") from error


def _build(data: vocabulary.Part) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(msgspec.json.encode(data).decode())
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"tokenizer.json: {error}") from error


def _frame(tokenizer: tokenizers.Tokenizer) -> Frame:
    """Seen from what it does to two short texts: what belongs to neither is special."""
    one: tokenizers.Encoding = tokenizer.encode("a")
    two: tokenizers.Encoding = tokenizer.encode("a", "a")
    before, after = _outside(one.ids, one.sequence_ids, 0)
    before_two, rest = _outside(two.ids, two.sequence_ids, 0)
    between, after_two = _outside(rest, two.sequence_ids[len(two.ids) - len(rest) :], 1)
    return Frame(before, after, before_two, between, after_two)


def _outside(ids: Sequence[int], sources: Sequence[int | None], source: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids before those of a source, and behind them."""
    mine = [place for place, each in enumerate(sources) if each == source]
    return (tuple(ids[: mine[0]]), tuple(ids[mine[-1] + 1 :])) if mine else (tuple(ids), ())


def _numbered(added: Sequence[AddedToken], tokenizer: tokenizers.Tokenizer) -> tuple[AddedToken, ...]:
    """With the ids that the library gives them, which need not be those of the file."""
    ids = ((token, tokenizer.token_to_id(token.content)) for token in added)
    return tuple(msgspec.structs.replace(token, id=id) for token, id in ids if id is not None)


def _scanner(controls: Sequence[AddedToken]) -> tuple[tokenizers.Tokenizer, tuple[int, ...]]:
    """A tokenizer that finds the control tokens exactly as the whole one does, and nothing else.

    Everything between two of them is one token 0. The second value: the true id by the scanner's own.
    """
    scanner = tokenizers.Tokenizer(models.WordLevel({"\u0000": 0}, unk_token="\u0000"))
    true_ids = [0]
    for token in controls:
        flags = {"single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip}
        entry = tokenizers.AddedToken(token.content, **flags, normalized=False, special=token.special)
        if scanner.add_tokens([entry]):  # pyright: ignore[reportUnknownMemberType]
            true_ids.append(token.id)
    return scanner, tuple(true_ids)


def _table(
    tokenizer: tokenizers.Tokenizer, added: Sequence[AddedToken], read: Callable[[str], bytes]
) -> tuple[bytes, ...]:
    names: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    size = max(max(names.values(), default=-1), max((token.id for token in added), default=-1)) + 1
    table = [b""] * size
    for name, id in names.items():
        table[id] = read(name)
    for token in added:
        table[token.id] = token.content.encode()
    return tuple(table)


def _encode(tokenizer: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
    try:
        if len(text) > LONG:
            # The library lets other threads run while it encodes several texts, and not while it encodes one.
            return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except (TypeError, UnicodeEncodeError) as error:
        _refuse_surrogates(text, error)


def _refuse_surrogates(text: str, error: Exception) -> NoReturn:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise RequestError("The text is not valid Unicode: it contains an unpaired surrogate.") from error
    raise error
