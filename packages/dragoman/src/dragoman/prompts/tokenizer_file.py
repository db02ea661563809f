"""Reads or rewrites the vocabulary of a `tokenizer.json`.

Control tokens are the added tokens that ordinary text must not be encoded to. An added
token of blanks only, or of one character and not marked special, is no control token:
vocabularies add runs of spaces and single characters as plain text, and without them
text would be tokenized differently than in training.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from .json_values import InvalidJson, decode_object

TokenizerPart = dict[str, Any]
"""A JSON object in a tokenizer.json; the `tokenizers` library defines its fields."""


# The name of a byte-fallback token, such as `<0x0A>`.
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


_MAX_GROWTH = 256
"""Real normalizers replace a space by one character, or a quotation mark by two."""
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


def parse_tokenizer(content: bytes | str | TokenizerPart) -> TokenizerPart:
    """Return a tokenizer.json as an object, decoded unless it is one.

    Raises:
        TokenizerError: it is not JSON, or has no model.
    """
    try:
        data = content if isinstance(content, dict) else decode_object(content)
    except InvalidJson as error:
        raise TokenizerError(f"tokenizer.json is not JSON: {error}") from error
    if not isinstance(data.get("model"), dict):
        raise TokenizerError("tokenizer.json has no model")
    growth = _compute_growth(data.get("normalizer"))
    if growth > _MAX_GROWTH:
        raise TokenizerError(
            f"tokenizer.json: its normalizers can make a text {growth} times as long; at most "
            f"{_MAX_GROWTH} is accepted"
        )
    return data


def _compute_growth(normalizer: object) -> int:
    """Return the factor by which replacements can lengthen a text. Several multiply, and
    the library aborts the process where memory ends.
    """
    match normalizer:
        case {"type": "Sequence", "normalizers": list()}:
            return math.prod(map(_compute_growth, cast("TokenizerPart", normalizer)["normalizers"]))
        case {"type": "Replace", "content": str(content)}:
            return max(1, len(content))
        case _:
            return 1


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
        pairs = read_merges(model)
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
    # With ignore_merges (Llama 3) a word that is in the vocabulary is one token without
    # any merge.
    words: dict[str, int] = model.get("vocab") or {}
    if model.get("ignore_merges") and not names.isdisjoint(words):
        return True
    # A merge is of two tokens. Few names are, and merges are up to half a million.
    joinable = {
        name
        for name in names
        if any(name[:cut] in words and name[cut:] in words for cut in range(1, len(name)))
    }
    return bool(joinable) and not joinable.isdisjoint(map("".join, read_merges(model)))


def can_share_model(data: TokenizerPart, controls: Sequence[AddedToken]) -> bool:
    """Whether a tokenizer that yields no control token can have the same model, if that
    spells none: the model also numbers all other added tokens itself.
    """
    model = data["model"]
    if find_model_type(model) != "BPE":
        return False
    names = {token.content for token in controls}
    words: dict[str, int] = model.get("vocab") or {}
    others = (token for token in read_added_tokens(data) if token.content not in names)
    # The model yields a token of one character without any merge.
    return all(len(name) > 1 for name in names) and all(
        words.get(token.content) == token.id for token in others
    )


def read_merges(model: TokenizerPart) -> Sequence[tuple[str, str]]:
    """Return the pairs that a BPE model merges, in order. Raises TokenizerError."""
    merges: Sequence[Any] = model.get("merges") or []
    # JSON has no tuples: the pairs were built from a GGUF file.
    if merges and isinstance(merges[0], tuple):
        return merges
    return [split_merge(merge) for merge in merges]


def split_merge(merge: str | Sequence[str]) -> tuple[str, str]:
    """Return the two tokens of a merge, which a file also writes as one text. Raises
    TokenizerError.
    """
    try:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    except ValueError:
        raise TokenizerError(f"a merge is not a pair of tokens: {merge!r:.80}") from None
    return left, right


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
            # The cheap check first: few of the names are those of bytes.
            byte = _BYTE.fullmatch(name) if byte_fallback and name[:3] == "<0x" else None
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
