"""The core's Tokenizer for a Hugging Face `tokenizer.json`: its vocabulary, cached
encoding, reuse of sampled ids.

Prompts reuse the token ids that were sampled for a text: a text has many tokenizations,
and the KV cache holds one.
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
from typing import Any, TypeAlias

import msgspec
import tokenizers
from msgspec import Struct
from tokenizers import models

from ..core.errors import RequestError
from .control_tokens import ControlTokens

# JSON as Python values, for templates and tokenizer files.

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonDict: TypeAlias = "dict[str, Json]"


class InvalidJson(ValueError):
    """Raised for text that is not JSON, or is JSON of another type."""


def decode(raw: bytes | str) -> Json:
    """Decode JSON. Raises InvalidJson, also for excessive numbers, lone surrogates and
    excessive nesting.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidJson(str(error)) from error


def decode_object(raw: bytes | str) -> JsonDict:
    value = decode(raw)
    if not isinstance(value, dict):
        raise InvalidJson("it is not an object")
    return value


# Reading and rewriting the vocabulary of a `tokenizer.json`.
#
# Control tokens are the added tokens that ordinary text must not be encoded to. An
# added token of blanks only, or of one character and not marked special, is no control
# token: vocabularies add runs of spaces and single characters as plain text, and
# without them text would be tokenized differently than in training.

TokenizerPart = dict[str, Any]
"""A JSON object in a tokenizer.json; the `tokenizers` library defines its fields."""

# The name of a byte-fallback token, such as `<0x0A>`.
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SEQUENCES = ("normalizers", "pretokenizers", "decoders")
# With U+2581, the character that SentencePiece writes for a space.
_WHITESPACE = re.compile(r"[\s\u2581]*")


class TokenizerError(ValueError):
    """Raised for files that do not describe a tokenizer, or not one that can be used
    for generation.
    """


class AddedToken(Struct, frozen=True):
    """An entry of `added_tokens`."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False

    @property
    def is_control(self) -> bool:
        # Runs of blanks are added tokens in many vocabularies (Phi, Gemma), and
        # ordinary text.
        if _WHITESPACE.fullmatch(self.content):
            return False
        return self.special or len(self.content) > 1


def parse_tokenizer(raw: bytes | str) -> TokenizerPart:
    try:
        data = decode_object(raw)
    except InvalidJson as error:
        raise TokenizerError(f"tokenizer.json is not JSON: {error}") from error
    if not isinstance(data.get("model"), dict):
        raise TokenizerError("tokenizer.json has no model")
    return data


def read_added_tokens(data: TokenizerPart) -> tuple[AddedToken, ...]:
    try:
        return tuple(msgspec.convert(data.get("added_tokens") or [], list[AddedToken]))
    except msgspec.ValidationError as error:
        raise TokenizerError(f"tokenizer.json: added_tokens: {error}") from error


def merge_added_tokens(data: TokenizerPart, extra_tokens: Sequence[AddedToken]) -> TokenizerPart:
    """Add the tokens that only `tokenizer_config.json` has; remove truncation and
    padding.

    Control tokens are matched in the original text, never in its normalized form: a
    normalizer must not turn other characters into a control token.
    """
    present_tokens = read_added_tokens(data)
    ids = {token.id for token in present_tokens}
    merged = [*present_tokens, *(token for token in extra_tokens if token.id not in ids)]
    if data.get("normalizer"):
        merged = [
            msgspec.structs.replace(t, normalized=t.normalized and not t.is_control) for t in merged
        ]
    # The library numbers added tokens by their order.
    merged.sort(key=lambda token: token.id)
    return data | {
        "added_tokens": [msgspec.to_builtins(t) for t in merged],
        "truncation": None,
        "padding": None,
    }


def hide_controls(data: TokenizerPart, controls: Sequence[AddedToken], nonce: str) -> TokenizerPart:
    """Rename the control tokens to names that no text contains, because the nonce is
    secret.

    They cannot be removed, since the library numbers added tokens by their order. They
    are renamed in the model too. The model cannot form the new names: they begin with a
    space, which byte-level and SentencePiece vocabularies both write as another
    character.
    """
    hidden_names = {token.content: f" \u0000{nonce}{token.content}" for token in controls}
    entries: list[TokenizerPart] = data.get("added_tokens") or []
    renamed_entries = [
        entry | {"content": hidden_names.get(entry["content"], entry["content"])}
        for entry in entries
    ]
    model: TokenizerPart = data["model"]
    vocab = model.get("vocab")
    if find_model_type(model) == "Unigram":
        pieces: list[tuple[str, float]] = vocab or []
        changes: TokenizerPart = {
            "vocab": [(hidden_names.get(name, name), score) for name, score in pieces]
        }
    else:
        words: dict[str, int] = vocab or {}
        changes = {"vocab": {hidden_names.get(word, word): id for word, id in words.items()}}
        if model.get("unk_token") in hidden_names:
            changes["unk_token"] = hidden_names[model["unk_token"]]
        merges: list[str | list[str]] = model.get("merges") or []
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges]
        plain_pairs = [pair for pair in pairs if not {*pair, "".join(pair)} & hidden_names.keys()]
        if len(plain_pairs) < len(pairs):
            changes["merges"] = plain_pairs
    return data | {"added_tokens": renamed_entries, "model": model | changes}


def can_spell_controls(data: TokenizerPart, controls: Sequence[AddedToken]) -> bool:
    """Whether the model (BPE or Unigram) can itself form a control token from text,
    without the added tokens.
    """
    model = data["model"]
    names = {token.content for token in controls}
    if find_model_type(model) == "Unigram":
        pieces: list[tuple[str, float]] = model.get("vocab") or []
        return any(name in names for name, _ in pieces)
    merges: list[str | list[str]] = model.get("merges") or []
    merged_names = (
        "".join(merge.split(" ", 1)) if isinstance(merge, str) else "".join(merge)
        for merge in merges
    )
    # With ignore_merges (Llama 3) a word that is in the vocabulary is one token without
    # any merge.
    whole_words: dict[str, int] = (model.get("vocab") or {}) if model.get("ignore_merges") else {}
    return not names.isdisjoint(whole_words) or any(name in names for name in merged_names)


def disable_prepending(data: TokenizerPart) -> TokenizerPart | None:
    """Return the tokenizer for text that is not at the start of the input; None if
    there is no difference.
    """
    pre_tokenizer = _disable_first_prepend(data.get("pre_tokenizer"))
    return None if pre_tokenizer is None else data | {"pre_tokenizer": pre_tokenizer}


def build_byte_reader(data: TokenizerPart) -> Callable[[str], bytes]:
    """Build a function that maps an ordinary token's name to its bytes.

    Raises:
        TokenizerError: the vocabulary does not define the bytes (WordPiece, `</w>`
            suffixes, ...).
    """
    model = data["model"]
    kind = find_model_type(model)
    if kind not in ("BPE", "Unigram"):
        raise TokenizerError(
            f"a {kind} vocabulary cannot be used for generation; only BPE and Unigram can"
        )
    for field in ("continuing_subword_prefix", "end_of_word_suffix"):
        # The bytes of such a token depend on its position in the word, so tokens cannot
        # be decoded one by one.
        if model.get(field):
            raise TokenizerError(
                f"a vocabulary with {field} {model[field]!r} cannot be used for generation"
            )
    decoders = {part["type"] for part in iterate_components(data.get("decoder"))}
    splitters = {part["type"] for part in iterate_components(data.get("pre_tokenizer"))}
    if "ByteLevel" in decoders or (not decoders and "ByteLevel" in splitters):
        return _decode_byte_level
    if "ByteFallback" in decoders or "Metaspace" in decoders or model.get("byte_fallback"):
        space_char = _find_space_char(data)
        byte_fallback = bool(model.get("byte_fallback"))

        def read(name: str) -> bytes:
            byte = _BYTE.fullmatch(name) if byte_fallback else None
            return bytes([int(byte[1], 16)]) if byte else name.replace(space_char, " ").encode()

        return read
    raise TokenizerError(f"the bytes of its tokens are unknown: decoder {sorted(decoders) or None}")


def build_name_reader(data: TokenizerPart) -> Callable[[str], bytes]:
    """Build a function that maps any token's name to its approximate bytes, without
    WordPiece's continuation prefix.

    Only for display: the joined bytes may differ from the text, so no response may be
    generated from them.
    """
    inner_prefix = str(data["model"].get("continuing_subword_prefix") or "")
    return lambda name: name.removeprefix(inner_prefix).encode()


def find_model_type(model: TokenizerPart) -> str:
    if "type" in model:
        return str(model["type"])
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "BPE" if "merges" in model else "WordLevel"


def iterate_components(part: TokenizerPart | None) -> Iterator[TokenizerPart]:
    """Yield a normalizer, pre-tokenizer or decoder and all components of its sequence."""
    if part is None:
        return
    yield part
    for sequence in _SEQUENCES:
        parts: list[TokenizerPart] = part.get(sequence) or []
        for item in parts:
            yield from iterate_components(item)


def build_byte_alphabet() -> dict[str, int]:
    """Build GPT-2's map of characters to bytes: printable bytes are themselves, others
    are U+0100 and up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    other_bytes = (byte for byte in range(256) if byte not in printable)
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + n): byte for n, byte in enumerate(other_bytes)}


def _decode_byte_level(name: str, table: dict[str, int] = build_byte_alphabet()) -> bytes:  # noqa: B008 (never written to)
    try:
        return bytes([table[char] for char in name])
    except KeyError:  # As in the library's decoder, a name outside the alphabet is text.
        return name.encode()


def _find_space_char(data: TokenizerPart) -> str:
    """Return the character that the vocabulary writes for a space."""
    for part in iterate_components(data.get("decoder")):
        if part["type"] == "Metaspace":
            return str(part.get("replacement", "\u2581"))
        if part["type"] == "Replace" and part.get("content") == " ":
            return str(part.get("pattern", {}).get("String", "\u2581"))
    return "\u2581"


def _disable_first_prepend(part: TokenizerPart | None) -> TokenizerPart | None:
    """Return the pre-tokenizer with `prepend_scheme` "never" instead of "first"; None
    if it has no "first".
    """
    if part is None:
        return None
    if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
        return part | {"prepend_scheme": "never", "add_prefix_space": False}
    nested: list[TokenizerPart] = part.get("pretokenizers") or []
    changed_items = [_disable_first_prepend(item) for item in nested]
    if all(item is None for item in changed_items):
        return None
    return part | {
        "pretokenizers": [
            changed_item or nested_item
            for changed_item, nested_item in zip(changed_items, nested, strict=True)
        ]
    }


# Reuse of sampled ids, and the cache of encoded pieces.

Ids = tuple[int, ...]


class SampledPrefixes:
    """The sampled texts of one conversation and their ids. Equal texts are used in the
    order of sampling, each once.
    """

    def __init__(
        self, runs: Sequence[Ids], control_ids: Set[int], token_bytes: Callable[[int], bytes]
    ) -> None:
        """runs: sampled ids of each response, after the ids of its prompt since the
            last control token.
        control_ids: ids of the control tokens, which separate texts.
        token_bytes: returns the bytes of a token; empty for unknown ids.
        """
        self._ids_by_bytes: defaultdict[bytes, deque[Ids]] = defaultdict(deque)
        pieces: list[list[int]] = []
        for run in runs:
            pieces.append([])
            for id in run:
                if id in control_ids:
                    pieces.append([])
                else:
                    pieces[-1].append(id)
        for piece in pieces:
            token_texts = list(map(token_bytes, piece))
            # Another model may have sampled the run: ids outside this vocabulary are
            # ignored.
            if piece and all(token_texts):
                self._ids_by_bytes[b"".join(token_texts)].append(tuple(piece))

    def take_ids(self, text: str) -> Ids | None:
        """Remove and return the ids of this text; None if it was not sampled."""
        matching_ids = self._ids_by_bytes.get(text.encode("utf-8", "surrogatepass"))
        return matching_ids.popleft() if matching_ids else None


def find_ids_since_control(prompt: Ids, control_ids: Set[int]) -> Ids:
    """Return the ids of a prompt since the last control token: the response continues
    their text.
    """
    start = next((i + 1 for i in range(len(prompt) - 1, -1, -1) if prompt[i] in control_ids), 0)
    return prompt[start:]


MAX_UNSHARED_CHARS = 16_384
"""Longer texts, in characters, are encoded without the GIL, which would block other
threads for too long.
"""
MIN_SCANNED_CHARS = 2048
"""The shortest prompt, in characters, whose pieces are cached if no regular expression
can find the control tokens: encoding a shorter prompt as a whole costs less than
scanning it.
"""
MAX_CACHED_CHARS = 4 * 1024 * 1024
"""The size of the cache, in characters, with `ENTRY_CHARS` for each entry."""
ENTRY_CHARS = 256
"""The overhead of a cache entry, in characters: pieces as short as a role are cached
too.
"""


class EncodingCache:
    """An LRU cache of the ids of pieces of prompts, since most prompts begin like an
    earlier one. Thread-safe.

    Each owner finds only its own pieces, so the latency of a request reveals nothing
    about the prompts of others.

    max_chars: the size of all entries: their characters, plus `ENTRY_CHARS` each.
    """

    def __init__(self, max_chars: int = MAX_CACHED_CHARS) -> None:
        self._max_chars = max_chars
        self._entries: OrderedDict[tuple[str, bool, str], array[int]] = OrderedDict()
        self._lock = Lock()
        self.n_chars = 0

    def find_or_encode(
        self, owner: str, text: str, is_first: bool, encode: Callable[[], Sequence[int]]
    ) -> list[int]:
        """Return the ids of a piece.

        is_first: the piece begins a prompt, where some tokenizers encode differently.
        """
        key = (owner, is_first, text)
        with self._lock:
            cached_ids = self._entries.get(key)
            if cached_ids is not None:
                self._entries.move_to_end(key)
                return cached_ids.tolist()
        # Outside the lock: encoding the same text twice costs less than blocking other
        # threads.
        ids = list(encode())
        with self._lock:
            if key not in self._entries and len(text) + ENTRY_CHARS <= self._max_chars:
                # Four bytes a token; a list of Python integers would be several times
                # as large.
                self._entries[key] = array("i", ids)
                self.n_chars += len(text) + ENTRY_CHARS
                while self.n_chars > self._max_chars:
                    (_, _, oldest_text), _ = self._entries.popitem(last=False)
                    self.n_chars -= len(oldest_text) + ENTRY_CHARS
        return ids


# The tokenizer.


class SpecialTokenWrapping(msgspec.Struct, frozen=True):
    """The special tokens that a tokenizer adds around one text, and around and between
    two.
    """

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    pair_prefix: tuple[int, ...] = ()
    pair_separator: tuple[int, ...] = ()
    pair_suffix: tuple[int, ...] = ()


class HfTokenizer:
    """Implements `core.engine.Tokenizer` with the `tokenizers` library."""

    def __init__(
        self, data: bytes | str, extra_tokens: Sequence[AddedToken] = (), *, generates: bool = True
    ) -> None:
        """data: the content of a tokenizer.json.
        extra_tokens: added tokens that may be missing in it.
        generates: the model generates text, so the bytes of every token must be known.

        Raises TokenizerError.
        """
        tokenizer_data = merge_added_tokens(parse_tokenizer(data), extra_tokens)
        read_bytes = (
            build_byte_reader(tokenizer_data) if generates else build_name_reader(tokenizer_data)
        )
        self._full_tokenizer = _build_tokenizer(tokenizer_data)
        # The library's ids may differ from the file's.
        added = read_added_tokens(tokenizer_data)
        ids = ((token, self._full_tokenizer.token_to_id(token.content)) for token in added)
        added_tokens = tuple(
            msgspec.structs.replace(token, id=id) for token, id in ids if id is not None
        )
        control_tokens = tuple(token for token in added_tokens if token.is_control)
        plain_data = hide_controls(tokenizer_data, control_tokens, token_hex(8))
        inner_data = disable_prepending(plain_data)
        self._plain_tokenizer = _build_tokenizer(plain_data)
        self._inner_tokenizer = (
            self._plain_tokenizer if inner_data is None else _build_tokenizer(inner_data)
        )
        self._scanner, self._scanned_ids = _build_scanner(control_tokens)
        self._control_pattern: re.Pattern[str] | None = None
        """Finds the same tokens as the scanner, 100 times as fast; None if some match
        depends on the text around it.
        """
        if not any(token.single_word or token.lstrip or token.rstrip for token in control_tokens):
            # Longest first, because `re` takes the first alternative that matches and
            # the scanner the longest.
            control_names = sorted(
                (token.content for token in control_tokens if token.content), key=len, reverse=True
            )
            self._control_pattern = re.compile("|".join(map(re.escape, control_names)) or r"(?!)")
        self._encoding_cache = EncodingCache()
        self._special_tokens = MappingProxyType({token.content: token.id for token in added_tokens})
        self._special_ids = frozenset(token.id for token in added_tokens if token.special)
        vocabulary: dict[str, int] = self._full_tokenizer.get_vocab(with_added_tokens=True)
        byte_table = [b""] * (
            max([-1, *vocabulary.values(), *(token.id for token in added_tokens)]) + 1
        )
        for name, id in vocabulary.items():
            byte_table[id] = read_bytes(name)
        for token in added_tokens:
            byte_table[token.id] = token.content.encode()
        self._byte_table = tuple(byte_table)
        self._can_spell_controls = can_spell_controls(tokenizer_data, control_tokens)
        self._max_token_bytes = max(map(len, self._byte_table), default=1)
        self._control_ids = frozenset(token.id for token in control_tokens)
        self.control_tokens = ControlTokens(token.content for token in control_tokens)
        # Detect the wrapping by encoding two short texts: ids that belong to neither
        # are special.
        tokenizer = self._full_tokenizer
        single_encoding: tokenizers.Encoding = tokenizer.encode("a")
        pair_encoding: tokenizers.Encoding = tokenizer.encode("a", "a")
        prefix, suffix = _split_around(single_encoding.ids, single_encoding.sequence_ids, 0)
        pair_prefix, pair_rest = _split_around(pair_encoding.ids, pair_encoding.sequence_ids, 0)
        pair_separator, pair_suffix = _split_around(
            pair_rest, pair_encoding.sequence_ids[len(pair_encoding.ids) - len(pair_rest) :], 1
        )
        self.wrapping = SpecialTokenWrapping(
            prefix, suffix, pair_prefix, pair_separator, pair_suffix
        )

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
        """Encode a text; with special=False it never yields a control token.

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
        """Encode text in which names of control tokens become these tokens, unless a
        break character is in the name.

        Break characters are removed. One before a control token of a single character
        makes it plain text. Text without break characters is encoded as in
        transformers, except where the model could form a control token from text that
        only normalizes to its name.

        sampled_prefixes: texts between control tokens that are encoded to their sampled
            ids.
        cache_owner: the owner whose cache entries the prompt may use; None disables the
            cache.
        """
        finds_cheaply = self._control_pattern is not None or len(text) >= MIN_SCANNED_CHARS
        owner = cache_owner if finds_cheaply else None
        if (
            owner is None
            and sampled_prefixes is None
            and break_char not in text
            and not self._can_spell_controls
        ):
            return self.encode(text, special=True)
        ids: list[int] = []
        encoded_until = 0
        for start, end, id in self._find_control_spans(text):
            if end - start == 1 and text[start - 1 : start] == break_char:
                continue
            ids += self._encode_piece(
                text[encoded_until:start],
                break_char,
                sampled_prefixes,
                owner,
                is_first=encoded_until == 0,
            )
            ids.append(id)
            encoded_until = end
        ids += self._encode_piece(
            text[encoded_until:], break_char, sampled_prefixes, owner, is_first=encoded_until == 0
        )
        return ids

    def token_bytes(self, id: int) -> bytes:
        """Return the token's bytes; empty for unused ids."""
        return self._byte_table[id] if 0 <= id < len(self._byte_table) else b""

    def is_special(self, id: int) -> bool:
        """Whether the vocabulary marks the token `special`, as `skip_special_tokens`
        means it.
        """
        return id in self._special_ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        known_ids = [id for id in ids if 0 <= id < len(self._byte_table)]
        return self._full_tokenizer.decode(known_ids, skip_special_tokens=skip_special_tokens)

    def _find_control_spans(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, id) of each control token; the span includes the blanks
        that the token strips.
        """
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
        sampled_ids = (
            None if sampled_prefixes is None or not text else sampled_prefixes.take_ids(text)
        )
        if sampled_ids is not None:
            return sampled_ids
        tokenizer = self._plain_tokenizer if is_first else self._inner_tokenizer
        if cache_owner is None:
            return _encode(tokenizer, text, False).ids
        return self._encoding_cache.find_or_encode(
            cache_owner, text, is_first, lambda: _encode(tokenizer, text, False).ids
        )


def load_tokenizer(directory: Path, *, generates: bool = True) -> HfTokenizer:
    """Load `tokenizer.json`, and added tokens that it lacks from
    `tokenizer_config.json` if that file exists.

    generates: as in HfTokenizer.

    Raises:
        TokenizerError: a file is invalid.
        FileNotFoundError: there is no `tokenizer.json`.
    """
    config = directory / "tokenizer_config.json"
    extra_tokens: list[AddedToken] = []
    if config.is_file():
        try:
            entries = msgspec.json.decode(config.read_bytes(), type=_Config).added_tokens_decoder
            extra_tokens = [
                msgspec.convert({**entry, "id": int(id)}, AddedToken)
                for id, entry in entries.items()
            ]
        except (msgspec.MsgspecError, ValueError) as error:
            raise TokenizerError(f"tokenizer_config.json: {error}") from error
    return HfTokenizer(
        (directory / "tokenizer.json").read_bytes(), extra_tokens, generates=generates
    )


class _Config(msgspec.Struct):
    added_tokens_decoder: dict[str, dict[str, Any]] = {}


def _build_tokenizer(data: TokenizerPart) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(msgspec.json.encode(data).decode())
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"tokenizer.json: {error}") from error


def _split_around(
    ids: Sequence[int], sources: Sequence[int | None], source: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids before those of a source (the number of an encoded text), and the
    ids after them.
    """
    positions = [
        position for position, token_source in enumerate(sources) if token_source == source
    ]
    return (
        (tuple(ids[: positions[0]]), tuple(ids[positions[-1] + 1 :]))
        if positions
        else (tuple(ids), ())
    )


def _build_scanner(controls: Sequence[AddedToken]) -> tuple[tokenizers.Tokenizer, tuple[int, ...]]:
    """Build a tokenizer that finds control tokens exactly as the complete one does, and
    nothing else.

    All text between them is one token 0. The second value maps the scanner's ids to the
    real ids.
    """
    scanner = tokenizers.Tokenizer(models.WordLevel({"\u0000": 0}, unk_token="\u0000"))
    true_ids = [0]
    for token in controls:
        flags = {"single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip}
        entry = tokenizers.AddedToken(
            token.content, **flags, normalized=False, special=token.special
        )
        if scanner.add_tokens([entry]):  # pyright: ignore[reportUnknownMemberType]
            true_ids.append(token.id)
    return scanner, tuple(true_ids)


def _encode(
    tokenizer: tokenizers.Tokenizer, text: str, add_special_tokens: bool
) -> tokenizers.Encoding:
    try:
        if len(text) > MAX_UNSHARED_CHARS:
            # encode_batch releases the GIL, encode does not.
            return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except (TypeError, UnicodeEncodeError) as error:
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise RequestError(
                "The text is not valid Unicode: it contains an unpaired surrogate."
            ) from error
        raise error
