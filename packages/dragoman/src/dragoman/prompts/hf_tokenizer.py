"""The core's Tokenizer for a Hugging Face `tokenizer.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import msgspec
import tokenizers
from tokenizers import models

from ..core.errors import EngineError, RequestError
from ..core.rust_panics import convert_panics
from .control_tokens import ControlTokens
from .encoding_cache import EncodingCache
from .token_replay import SampledPrefixes
from .tokenizer_classes import TokenizerClass, build_class_parts, read_model_type
from .tokenizer_file import (
    AddedToken,
    TokenizerError,
    TokenizerPart,
    build_byte_reader,
    build_name_reader,
    can_share_model,
    can_spell_controls,
    disable_prepending,
    find_model_type,
    hide_controls,
    merge_added_tokens,
    parse_tokenizer,
    read_added_tokens,
    read_merges,
)

MAX_UNSHARED_CHARS = 16_384
"""Longer texts, in characters, are encoded without the GIL, which would block other
threads for too long.
"""
PairTypes: TypeAlias = tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]
MIN_SCANNED_CHARS = 2048
"""The shortest prompt, in characters, whose pieces are cached if no regular expression
can find the control tokens: encoding a shorter prompt as a whole costs less than
scanning it.
"""


_BPE_OPTIONS = frozenset(
    {
        "dropout",
        "unk_token",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "fuse_unk",
        "byte_fallback",
        "ignore_merges",
    }
)
"""Fields of a BPE model in a tokenizer.json, other than its vocabulary."""
_EMPTY_MODEL: TokenizerPart = {"type": "BPE", "vocab": {}, "merges": []}


class SpecialTokenWrapping(msgspec.Struct, frozen=True):
    """The special tokens that a tokenizer adds around one text, and around and between
    two.

    pair_types: the types (segments) of the tokens of a pair: of those of `pair_prefix`,
        of the first text, of `pair_separator`, of the second text, of `pair_suffix`.
    """

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    pair_prefix: tuple[int, ...] = ()
    pair_separator: tuple[int, ...] = ()
    pair_suffix: tuple[int, ...] = ()
    pair_types: PairTypes = ((), 0, (), 1, ())


class HfTokenizer:
    """Implements `core.engine.Tokenizer` with the `tokenizers` library."""

    def __init__(
        self,
        data: bytes | str | TokenizerPart,
        extra_tokens: Sequence[AddedToken] = (),
        *,
        generates: bool = True,
    ) -> None:
        """data: the content of a tokenizer.json, encoded or decoded.
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
        self._can_spell_controls = can_spell_controls(tokenizer_data, control_tokens)
        if not self._can_spell_controls and can_share_model(tokenizer_data, control_tokens):
            # A large vocabulary takes seconds to build, and hundreds of megabytes.
            model = self._full_tokenizer.model
            hidden_names = {token.content for token in control_tokens}
            plain_data = tokenizer_data | {
                "added_tokens": [
                    entry
                    for entry in tokenizer_data["added_tokens"]
                    if entry["content"] not in hidden_names
                ]
            }
        else:
            model = None
            plain_data = hide_controls(tokenizer_data, control_tokens, token_hex(8))
        self._plain_tokenizer = _build_tokenizer(plain_data, model)
        inner_data = disable_prepending(plain_data)
        self._inner_tokenizer = (
            self._plain_tokenizer
            if inner_data is None
            else _build_tokenizer(inner_data, self._plain_tokenizer.model)
        )
        self._control_tokens = control_tokens
        self._control_pattern = _build_control_pattern(control_tokens)
        """Finds the same tokens as the scanner, 100 times as fast; None if some match
        depends on the text around it.
        """
        self._encoding_cache = EncodingCache()
        self._special_tokens = MappingProxyType({token.content: token.id for token in added_tokens})
        self._special_ids = frozenset(token.id for token in added_tokens if token.special)
        model_data = tokenizer_data["model"]
        vocabulary: dict[str, int] = (
            model_data["vocab"]
            if find_model_type(model_data) == "BPE"
            else self._full_tokenizer.get_vocab(with_added_tokens=True)
        )
        byte_table = [b""] * (
            max([-1, *vocabulary.values(), *(token.id for token in added_tokens)]) + 1
        )
        for name, id in vocabulary.items():
            byte_table[id] = read_bytes(name)
        for token in added_tokens:
            byte_table[token.id] = token.content.encode()
        self._byte_table = tuple(byte_table)
        self.vocab_size = len(byte_table)
        """The highest id plus one."""
        self.longest_token = max(map(len, self._byte_table), default=1)
        self.control_ids = frozenset(token.id for token in control_tokens)
        """Ids of the control tokens."""
        self.control_tokens = ControlTokens(token.content for token in control_tokens)
        # Detect the wrapping by encoding two short texts: ids that belong to neither
        # are special.
        tokenizer = self._full_tokenizer
        with convert_panics(_build_loading_error):
            single_encoding: tokenizers.Encoding = tokenizer.encode("a")
            pair_encoding: tokenizers.Encoding = tokenizer.encode("a", "a")
        prefix, suffix = _split_around(single_encoding.ids, single_encoding.sequence_ids, 0)
        pair_prefix, pair_rest = _split_around(pair_encoding.ids, pair_encoding.sequence_ids, 0)
        pair_separator, pair_suffix = _split_around(
            pair_rest, pair_encoding.sequence_ids[len(pair_encoding.ids) - len(pair_rest) :], 1
        )
        self.wrapping = SpecialTokenWrapping(
            prefix, suffix, pair_prefix, pair_separator, pair_suffix, _split_types(pair_encoding)
        )

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self._special_tokens

    @cached_property
    def finds_controls_anywhere(self) -> bool:
        """Whether the control tokens in a text do not depend on the text around it."""
        # One of a single character is text after a break character. No break character
        # separates white space at the end of a user's text from what the template writes.
        return self._control_pattern is not None and all(
            [len(name) > 1 and name == name.strip() for name in self.control_tokens.names]
        )

    @cached_property
    def _scanner(self) -> tuple[tokenizers.Tokenizer, tuple[int, ...]]:
        """See `_build_scanner`. Built when it is first used, since most vocabularies
        have a `_control_pattern` instead.
        """
        return _build_scanner(self._control_tokens)

    def find_id(self, token: str) -> int | None:
        """Return the id of a token by its name in the vocabulary."""
        return self._full_tokenizer.token_to_id(token)

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        """Encode a text; with special=False it never yields a control token.

        Raises:
            RequestError: the text is not valid Unicode (a lone surrogate).
        """
        tokenizer = self._full_tokenizer if special else self._plain_tokenizer
        return _encode(tokenizer, text, add_special_tokens).ids

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
        pieces: list[str] = []
        # The ids of the control tokens, with -1 in the place of each piece.
        layout: list[int] = []
        encoded_until = 0
        for start, end, id in self.find_control_spans(text):
            if end - start == 1 and text[start - 1 : start] == break_char:
                continue
            if start > encoded_until:
                pieces.append(text[encoded_until:start])
                layout.append(-1)
            layout.append(id)
            encoded_until = end
        if encoded_until < len(text):
            pieces.append(text[encoded_until:])
            layout.append(-1)
        if break_char in text:
            pieces = [piece.replace(break_char, "") for piece in pieces]
        pieces_ids = iter(
            self.encode_pieces(
                pieces,
                begins=bool(layout) and layout[0] == -1,
                sampled_prefixes=sampled_prefixes,
                cache_owner=owner,
            )
        )
        ids: list[int] = []
        for id in layout:
            if id == -1:
                ids += next(pieces_ids)
            else:
                ids.append(id)
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
        with convert_panics(_build_decoding_error):
            return self._full_tokenizer.decode(known_ids, skip_special_tokens=skip_special_tokens)

    def find_control_spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return (start, end, id) of each control token; the span includes the blanks
        that the token strips.
        """
        if self._control_pattern is not None:
            special_tokens = self._special_tokens
            return [
                (*match.span(), special_tokens[match[0]])
                for match in self._control_pattern.finditer(text)
            ]
        scanner, true_ids = self._scanner
        encoding = _encode(scanner, text, False)
        return [
            (start, end, true_ids[number])
            for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if number
        ]

    def encode_pieces(
        self,
        pieces: list[str],
        *,
        begins: bool,
        sampled_prefixes: SampledPrefixes | None = None,
        cache_owner: str | None = None,
    ) -> list[Sequence[int]]:
        """Encode the texts between control tokens, as `encode_broken` does.

        begins: the first one begins the prompt.
        """
        if sampled_prefixes is not None:
            sampled = [sampled_prefixes.take_ids(text) if text else None for text in pieces]
            others = [text for text, ids in zip(pieces, sampled, strict=True) if ids is None]
            begins = begins and sampled[0] is None
            encoded = iter(self.encode_pieces(others, begins=begins, cache_owner=cache_owner))
            return [next(encoded) if ids is None else ids for ids in sampled]
        if cache_owner is not None:
            return self._encoding_cache.find_or_encode(
                cache_owner, pieces, self._encode_piece, begins=begins
            )
        return [
            self._encode_piece(text, begins and number == 0) for number, text in enumerate(pieces)
        ]

    def _encode_piece(self, text: str, is_first: bool) -> list[int]:
        return _encode(
            self._plain_tokenizer if is_first else self._inner_tokenizer, text, False
        ).ids


def load_tokenizer(directory: Path, *, generates: bool = True) -> HfTokenizer:
    """Load `tokenizer.json`, and from `tokenizer_config.json`, if that file exists, the
    added tokens that it lacks and the rules of the tokenizer class. A tokenizer that is
    in use is returned again.

    generates: as in HfTokenizer.

    Raises:
        TokenizerError: a file is invalid.
        FileNotFoundError: there is no `tokenizer.json`.
    """
    path = directory / "tokenizer_config.json"
    extra_tokens: list[AddedToken] = []
    config = _Config()
    if path.is_file():
        try:
            config = msgspec.json.decode(path.read_bytes(), type=_Config)
            extra_tokens = [
                msgspec.convert({**entry, "id": int(id)}, AddedToken)
                for id, entry in config.added_tokens_decoder.items()
            ]
        except (msgspec.MsgspecError, ValueError) as error:
            raise TokenizerError(f"tokenizer_config.json: {error}") from error
    content = (directory / "tokenizer.json").read_bytes()
    data = parse_tokenizer(content)
    model_config = directory / "config.json"
    model_type = read_model_type(model_config.read_bytes()) if model_config.is_file() else ""
    parts = build_class_parts(data, config, model_type)
    key = _Key(sha256(content).digest(), msgspec.json.encode(parts), tuple(extra_tokens), generates)
    tokenizer = _loaded_tokenizers.get(key)
    if tokenizer is None:
        tokenizer = _loaded_tokenizers[key] = HfTokenizer(
            data | parts, extra_tokens, generates=generates
        )
    return tokenizer


class _Key(msgspec.Struct, frozen=True):
    """What a tokenizer is made of. class_parts: JSON of the parts of its class."""

    digest: bytes
    class_parts: bytes
    extra_tokens: tuple[AddedToken, ...]
    generates: bool


_loaded_tokenizers: WeakValueDictionary[_Key, HfTokenizer] = WeakValueDictionary()
"""The tokenizers in use, by what they are made of: models that have the same one share
it. It has no state but its cache, in which each owner finds only its own pieces.
"""


class _Config(TokenizerClass):
    added_tokens_decoder: dict[str, dict[str, Any]] = msgspec.field(
        default_factory=dict[str, dict[str, Any]]
    )


def _build_control_pattern(controls: Sequence[AddedToken]) -> re.Pattern[str] | None:
    """Build the pattern of the control tokens; None if some need more than a pattern."""
    if any(token.single_word or token.lstrip or token.rstrip for token in controls):
        return None
    # Longest first, because `re` takes the first alternative that matches and the
    # scanner the longest.
    names = sorted((token.content for token in controls if token.content), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)) or r"(?!)")


def _build_tokenizer(
    data: TokenizerPart, model: models.Model | None = None
) -> tokenizers.Tokenizer:
    """Build a tokenizer.

    model: a model to share; None builds that of `data`.

    Raises: TokenizerError.
    """
    try:
        with convert_panics(_build_loading_error):
            return _assemble(data, model)
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"tokenizer.json: {error}") from error


def _assemble(data: TokenizerPart, model: models.Model | None) -> tokenizers.Tokenizer:
    model = model or _build_bpe(data["model"])
    if model is None:
        return tokenizers.Tokenizer.from_str(msgspec.json.encode(data).decode())
    no_tokens: list[AddedToken] = []
    frame = data | {"added_tokens": no_tokens, "model": _EMPTY_MODEL}
    tokenizer = tokenizers.Tokenizer.from_str(msgspec.json.encode(frame).decode())
    tokenizer.model = model  # pyright: ignore[reportAttributeAccessIssue]
    added = [
        tokenizers.AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=token.special,
        )
        for token in read_added_tokens(data)
    ]
    # All at once, since each call builds the index of all added tokens again.
    tokenizer.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]
    return tokenizer


def _build_bpe(model: TokenizerPart) -> models.Model | None:
    """Build a BPE model without JSON, which would take twice the time and memory; None
    for other models.
    """
    options = {name: value for name, value in model.items() if value is not None}
    words = options.pop("vocab", None)
    merges = options.pop("merges", None)
    kind = options.pop("type", None)
    if kind != "BPE" or not words or merges is None or options.keys() - _BPE_OPTIONS:
        return None
    return models.BPE(vocab=words, merges=read_merges(model), **options)


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


def _split_types(pair: tokenizers.Encoding) -> PairTypes:
    """Return `SpecialTokenWrapping.pair_types`, from an encoded pair of texts."""
    types: list[int] = pair.type_ids
    sources = pair.sequence_ids
    prefix, rest = _split_around(types, sources, 0)
    separator, suffix = _split_around(rest, sources[len(sources) - len(rest) :], 1)
    first, second = (
        next((type for type, source in zip(types, sources, strict=True) if source == text), text)
        for text in (0, 1)
    )
    return prefix, first, separator, second, suffix


def _build_scanner(controls: Sequence[AddedToken]) -> tuple[tokenizers.Tokenizer, tuple[int, ...]]:
    """Build a tokenizer that finds control tokens exactly as the complete one does, and
    nothing else.

    All text between them is one token 0. The second value maps the scanner's ids to the
    real ids.
    """
    scanner = tokenizers.Tokenizer(models.WordLevel({"\u0000": 0}, unk_token="\u0000"))
    entries = [
        tokenizers.AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=False,
            special=token.special,
        )
        for token in controls
    ]
    # All at once, since each call builds the index of all added tokens again.
    scanner.add_tokens(entries)  # pyright: ignore[reportUnknownMemberType]
    true_ids = [0] * scanner.get_vocab_size()
    for token in controls:
        number = scanner.token_to_id(token.content)
        if number:
            true_ids[number] = true_ids[number] or token.id
    return scanner, tuple(true_ids)


def _encode(
    tokenizer: tokenizers.Tokenizer, text: str, add_special_tokens: bool
) -> tokenizers.Encoding:
    """Encode a text.

    Raises:
        RequestError: the text is not valid Unicode, or the tokenizer cannot encode it:
            a pattern in the file gives up after too many attempts.
    """
    try:
        with convert_panics(_build_encoding_error):
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


def _build_loading_error() -> TokenizerError:
    return TokenizerError("tokenizer.json: the tokenizers library fails on it")


def _build_encoding_error() -> RequestError:
    return RequestError("The model's tokenizer cannot encode this text.")


def _build_decoding_error() -> EngineError:
    return EngineError("The model's tokenizer cannot decode its tokens.")
