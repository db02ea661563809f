"""A Hugging Face `tokenizer.json` as the core's Tokenizer. Knows no templates, models or requests.

Sampled token ids are reused in prompts: a text has many tokenisations, and a cached prefix matches one of them only.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from secrets import token_hex
from threading import Lock
from types import MappingProxyType
from typing import Any

import msgspec
import tokenizers
from tokenizers import models

from ..core.errors import RequestError
from . import vocabulary
from .control_tokens import ControlTokens
from .vocabulary import AddedToken, TokenizerError

Ids = tuple[int, ...]


class SampledPrefixes:
    """The sampled texts of one conversation. Equal texts are used in the order of sampling, each once."""

    def __init__(self, runs: Sequence[Ids], control_ids: Set[int], token_bytes: Callable[[int], bytes]) -> None:
        """runs: sampled ids, each preceded by those of its prompt since the last control token."""
        self._ids_by_bytes: defaultdict[bytes, deque[Ids]] = defaultdict(deque)
        for run in runs:
            for piece in _split_at_controls(run, control_ids):
                token_texts = list(map(token_bytes, piece))
                # Another model may have sampled the run: ids outside this vocabulary are ignored.
                if all(token_texts):
                    self._ids_by_bytes[b"".join(token_texts)].append(piece)

    def take_ids(self, text: str) -> Ids | None:
        """The ids of this text; None where it was not sampled."""
        matching_ids = self._ids_by_bytes.get(text.encode("utf-8", "surrogatepass"))
        return matching_ids.popleft() if matching_ids else None


def _split_at_controls(run: Ids, control_ids: Set[int]) -> list[Ids]:
    pieces: list[list[int]] = [[]]
    for id in run:
        if id in control_ids:
            pieces.append([])
        else:
            pieces[-1].append(id)
    return [tuple(piece) for piece in pieces if piece]


def find_ids_since_control(prompt: Ids, control_ids: Set[int]) -> Ids:
    """The ids since the last control token, which the response continues."""
    start = next((i + 1 for i in range(len(prompt) - 1, -1, -1) if prompt[i] in control_ids), 0)
    return prompt[start:]


__all__ = ["HfTokenizer", "SpecialTokenWrapping", "TokenizerError", "load_tokenizer"]


MAX_UNSHARED_CHARS = 16_384
"""Longer texts, in characters, are encoded without the GIL: other threads would notice the wait."""


MIN_SCANNED_CHARS = 2048
"""Where only the library finds the control tokens, it encodes shorter prompts as a whole: that costs less."""
MAX_CACHED_CHARS = 4 * 1024 * 1024
ENTRY_CHARS = 256
"""What the entry of a piece takes beside its text, in characters: pieces as short as a role are cached too."""


class EncodingCache:
    """Ids of pieces of prompts: most prompts begin like an earlier one. Thread-safe; drops the least used ones.

    An owner finds only its own pieces, so that the time of a request reveals nothing about the prompts of others.

    max_chars: of all pieces, each with `ENTRY_CHARS`.
    """

    def __init__(self, max_chars: int = MAX_CACHED_CHARS) -> None:
        self._max_chars = max_chars
        self._entries: OrderedDict[tuple[str, bool, str], array[int]] = OrderedDict()
        self._lock = Lock()
        self.n_chars = 0

    def find_or_encode(self, owner: str, text: str, is_first: bool, encode: Callable[[], Sequence[int]]) -> list[int]:
        """The ids of a piece. is_first: it begins a prompt, where some tokenizers encode differently."""
        key = (owner, is_first, text)
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                return found.tolist()
        # Outside the lock: two threads may encode the same text, which costs less than one waiting for the other.
        ids = list(encode())
        with self._lock:
            if key not in self._entries and len(text) + ENTRY_CHARS <= self._max_chars:
                # Four bytes a token; a list of Python's integers would be several times as large.
                self._entries[key] = array("i", ids)
                self.n_chars += len(text) + ENTRY_CHARS
                while self.n_chars > self._max_chars:
                    (_, _, oldest_text), _ = self._entries.popitem(last=False)
                    self.n_chars -= len(oldest_text) + ENTRY_CHARS
        return ids


class SpecialTokenWrapping(msgspec.Struct, frozen=True):
    """The special tokens that a tokenizer adds around one text, and around and between two."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    pair_prefix: tuple[int, ...] = ()
    pair_separator: tuple[int, ...] = ()
    pair_suffix: tuple[int, ...] = ()


class HfTokenizer:
    """See `core.engine.Tokenizer`. The library releases the GIL while it encodes a batch."""

    def __init__(self, data: bytes | str, extra_tokens: Sequence[AddedToken] = (), *, generates: bool = True) -> None:
        """data: the content of a tokenizer.json.
        extra_tokens: added tokens that are missing in it.
        generates: responses are generated, so the bytes of every token must be known.

        Raises TokenizerError.
        """
        tokenizer_data = vocabulary.merge_added_tokens(vocabulary.parse_tokenizer(data), extra_tokens)
        read_bytes = (
            vocabulary.build_byte_reader(tokenizer_data) if generates else vocabulary.build_name_reader(tokenizer_data)
        )
        self._full_tokenizer = _build_tokenizer(tokenizer_data)
        # The library's ids may differ from the file's.
        added = vocabulary.read_added_tokens(tokenizer_data)
        ids = ((token, self._full_tokenizer.token_to_id(token.content)) for token in added)
        added_tokens = tuple(msgspec.structs.replace(token, id=id) for token, id in ids if id is not None)
        control_tokens = tuple(token for token in added_tokens if token.is_control)
        plain_data = vocabulary.hide_controls(tokenizer_data, control_tokens, token_hex(8))
        inner_data = vocabulary.disable_prepending(plain_data)
        self._plain_tokenizer = _build_tokenizer(plain_data)
        self._inner_tokenizer = self._plain_tokenizer if inner_data is None else _build_tokenizer(inner_data)
        self._scanner, self._scanned_ids = _build_scanner(control_tokens)
        self._control_pattern = _build_control_pattern(control_tokens)
        self._encoding_cache = EncodingCache()
        self._special_tokens = MappingProxyType({token.content: token.id for token in added_tokens})
        self._special_ids = frozenset(token.id for token in added_tokens if token.special)
        self._byte_table = _build_byte_table(self._full_tokenizer, added_tokens, read_bytes)
        self._can_spell_controls = vocabulary.can_spell_controls(tokenizer_data, control_tokens)
        self._max_token_bytes = max(map(len, self._byte_table), default=1)
        self._control_ids = frozenset(token.id for token in control_tokens)
        self.control_tokens = ControlTokens(token.content for token in control_tokens)
        # Detect the wrapping by encoding two short texts: ids that belong to neither are special.
        tokenizer = self._full_tokenizer
        single_encoding: tokenizers.Encoding = tokenizer.encode("a")
        pair_encoding: tokenizers.Encoding = tokenizer.encode("a", "a")
        prefix, suffix = _split_around(single_encoding.ids, single_encoding.sequence_ids, 0)
        pair_prefix, pair_rest = _split_around(pair_encoding.ids, pair_encoding.sequence_ids, 0)
        pair_separator, pair_suffix = _split_around(
            pair_rest, pair_encoding.sequence_ids[len(pair_encoding.ids) - len(pair_rest) :], 1
        )
        self.wrapping = SpecialTokenWrapping(prefix, suffix, pair_prefix, pair_separator, pair_suffix)

    @property
    def vocab_size(self) -> int:
        """The highest id plus one."""
        return len(self._byte_table)

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self._special_tokens

    @property
    def longest_token(self) -> int:
        return self._max_token_bytes

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        """Encode a text; special=False never yields a control token (see `vocabulary`).

        Raises:
            RequestError: the text is not valid Unicode (a lone surrogate).
        """
        tokenizer = self._full_tokenizer if special else self._plain_tokenizer
        return _encode(tokenizer, text, add_special_tokens).ids

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of the control tokens."""
        return self._control_ids

    def encode_broken(
        self,
        text: str,
        break_char: str,
        sampled_prefixes: SampledPrefixes | None = None,
        *,
        cache_owner: str | None = None,
    ) -> list[int]:
        """Encode text in which names of control tokens count, except those that contain a break character.

        Break characters are removed. A control token of one character does not count behind one. Text without them is
        encoded as in transformers, unless the vocabulary's model could form a control token from text that merely
        normalises to its name.

        sampled_prefixes: texts between control tokens that get their sampled ids.
        cache_owner: whose cached ids the prompt may use; None for no cache.
        """
        finds_cheaply = self._control_pattern is not None or len(text) >= MIN_SCANNED_CHARS
        owner = cache_owner if finds_cheaply else None
        if owner is None and sampled_prefixes is None and break_char not in text and not self._can_spell_controls:
            return self.encode(text, special=True)
        ids: list[int] = []
        encoded_until = 0
        for start, end, id in self._find_control_spans(text):
            if end - start == 1 and text[start - 1 : start] == break_char:
                continue
            ids += self._encode_piece(
                text[encoded_until:start], break_char, sampled_prefixes, owner, is_first=encoded_until == 0
            )
            ids.append(id)
            encoded_until = end
        ids += self._encode_piece(
            text[encoded_until:], break_char, sampled_prefixes, owner, is_first=encoded_until == 0
        )
        return ids

    def token_bytes(self, id: int) -> bytes:
        """The token's bytes; empty for unused ids."""
        return self._byte_table[id] if 0 <= id < len(self._byte_table) else b""

    def is_special(self, id: int) -> bool:
        """Whether the vocabulary marks the token `special`, as in `skip_special_tokens`. Other added tokens are
        text.
        """
        return id in self._special_ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        known_ids = [id for id in ids if 0 <= id < len(self._byte_table)]
        return self._full_tokenizer.decode(known_ids, skip_special_tokens=skip_special_tokens)

    def _find_control_spans(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each control token, with the blanks that it strips."""
        if self._control_pattern is not None:
            for match in self._control_pattern.finditer(text):
                yield match.start(), match.end(), self._special_tokens[match[0]]
            return
        encoding = _encode(self._scanner, text, False)
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number:
                yield start, end, self._scanned_ids[number]

    def _encode_piece(
        self,
        text: str,
        break_char: str,
        sampled_prefixes: SampledPrefixes | None,
        cache_owner: str | None,
        *,
        is_first: bool,
    ) -> Sequence[int]:
        text = text.replace(break_char, "")
        sampled_ids = None if sampled_prefixes is None or not text else sampled_prefixes.take_ids(text)
        if sampled_ids is not None:
            return sampled_ids
        tokenizer = self._plain_tokenizer if is_first else self._inner_tokenizer
        if cache_owner is None:
            return _encode(tokenizer, text, False).ids
        return self._encoding_cache.find_or_encode(
            cache_owner, text, is_first, lambda: _encode(tokenizer, text, False).ids
        )


def load_tokenizer(directory: Path, *, generates: bool = True) -> HfTokenizer:
    """Load `tokenizer.json`, and from `tokenizer_config.json` (if present) the added tokens that are missing in it.

    generates: as in HfTokenizer.

    Raises TokenizerError, FileNotFoundError.
    """
    config = directory / "tokenizer_config.json"
    extra_tokens = _read_config_tokens(config.read_bytes()) if config.is_file() else ()
    return HfTokenizer((directory / "tokenizer.json").read_bytes(), extra_tokens, generates=generates)


class _Config(msgspec.Struct):
    added_tokens_decoder: dict[str, dict[str, Any]] = {}


def _read_config_tokens(raw: bytes) -> tuple[AddedToken, ...]:
    try:
        entries = msgspec.json.decode(raw, type=_Config).added_tokens_decoder
        return tuple(msgspec.convert({**entry, "id": int(id)}, AddedToken) for id, entry in entries.items())
    except (msgspec.MsgspecError, ValueError) as error:
        raise TokenizerError(f"tokenizer_config.json: {error}") from error


def _build_tokenizer(data: vocabulary.TokenizerPart) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(msgspec.json.encode(data).decode())
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"tokenizer.json: {error}") from error


def _split_around(
    ids: Sequence[int], sources: Sequence[int | None], source: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids before those of a source, and after them."""
    positions = [position for position, token_source in enumerate(sources) if token_source == source]
    return (tuple(ids[: positions[0]]), tuple(ids[positions[-1] + 1 :])) if positions else (tuple(ids), ())


def _build_scanner(controls: Sequence[AddedToken]) -> tuple[tokenizers.Tokenizer, tuple[int, ...]]:
    """A tokenizer that finds control tokens exactly as the complete one does, and nothing else.

    All text between them is one token 0. The second value maps its ids to the true ones.
    """
    scanner = tokenizers.Tokenizer(models.WordLevel({"\u0000": 0}, unk_token="\u0000"))
    true_ids = [0]
    for token in controls:
        flags = {"single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip}
        entry = tokenizers.AddedToken(token.content, **flags, normalized=False, special=token.special)
        if scanner.add_tokens([entry]):  # pyright: ignore[reportUnknownMemberType]
            true_ids.append(token.id)
    return scanner, tuple(true_ids)


def _build_control_pattern(controls: Sequence[AddedToken]) -> re.Pattern[str] | None:
    """A pattern that finds what the scanner finds, a hundred times as fast; None where tokens look at their neighbours.

    The scanner takes the leftmost name, and the longest of several.
    """
    if any(token.single_word or token.lstrip or token.rstrip for token in controls):
        return None
    # `re` takes the first alternative that matches, not the longest.
    names = sorted((token.content for token in controls if token.content), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)) if names else r"(?!)")


def _build_byte_table(
    tokenizer: tokenizers.Tokenizer, added: Sequence[AddedToken], read_bytes: Callable[[str], bytes]
) -> tuple[bytes, ...]:
    names: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    size = max(max(names.values(), default=-1), max((token.id for token in added), default=-1)) + 1
    table = [b""] * size
    for name, id in names.items():
        table[id] = read_bytes(name)
    for token in added:
        table[token.id] = token.content.encode()
    return tuple(table)


def _encode(tokenizer: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
    try:
        if len(text) > MAX_UNSHARED_CHARS:
            # encode_batch releases the GIL, encode does not.
            return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except (TypeError, UnicodeEncodeError) as error:
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise RequestError("The text is not valid Unicode: it contains an unpaired surrogate.") from error
        raise error
