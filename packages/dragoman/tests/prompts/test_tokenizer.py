"""Text to ids and back, for every kind of generative vocabulary."""

from __future__ import annotations

import gc
import json
import unicodedata
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import llguidance
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.prompts import vocabularies
from tests.prompts.vocabularies import (
    CONTROLS,
    Data,
    added,
    build_tokenizer,
    byte_level_data,
    sentencepiece_data,
)

from dragoman.core.errors import RequestError
from dragoman.core.tokenizer import Tokenizer
from dragoman.prompts.encoding_cache import ENTRY_CHARS, EncodingCache
from dragoman.prompts.hf_tokenizer import MIN_SCANNED_CHARS, HfTokenizer, load_tokenizer
from dragoman.prompts.tokenizer_file import TokenizerError

KINDS = vocabularies.all_kinds()
CLASSIC = ["embedded", "byte level", "sentencepiece", "metaspace first", "metaspace always"]
"""Kinds that needed no change for safety."""
every_kind = pytest.mark.parametrize("kind", KINDS)

hostile_texts = st.lists(
    st.one_of(
        st.sampled_from(CONTROLS),
        st.sampled_from(
            [
                "<s>",
                "</s>",
                "<unk>",
                "＜think＞",
                "<THINK>",
                "[INST",
                "hi the ",
                " ",
                "\n",
                "<0x41>",
                "\u2581",
            ]
        ),
        st.text(max_size=5),
    ),
    max_size=8,
).map("".join)


def control_ids(tokenizer: HfTokenizer) -> set[int]:
    return {tokenizer.special_tokens[name] for name in tokenizer.control_tokens.names}


def test_hf_tokenizer_implements_core_protocol() -> None:
    tokenizer: Tokenizer = KINDS["embedded"]
    assert tokenizer.vocab_size > 256
    assert tokenizer.special_tokens["<|im_end|>"] == 2


@every_kind
@given(text=hostile_texts)
def test_encode_plain_text_yields_no_control_tokens(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    assert control_ids(tokenizer).isdisjoint(tokenizer.encode(text, special=False))


@every_kind
def test_encode_control_token_depends_on_special_flag(kind: str) -> None:
    tokenizer = KINDS[kind]
    for name in tokenizer.control_tokens.names:
        id = tokenizer.special_tokens[name]
        assert id in tokenizer.encode(f"the {name} the", special=True)
        assert id not in tokenizer.encode(f"the {name} the", special=False)
        assert tokenizer.token_bytes(id) == name.encode()


@every_kind
@given(text=hostile_texts)
def test_encode_decode_round_trips_text(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    if kind == "unigram":  # its normaliser changes more than is worth repeating here
        text = "".join(char for char in text if char.isascii() and char.isprintable())
        # `tokenizers` treats the name of a byte piece in a text as the piece itself.
        text = text.replace("<0x", "<x")
    written = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text, special=False)))
    blank = kind not in ("embedded",) and not kind.startswith("byte level")
    expected = text.replace("\u2581", " ") if blank else text
    if kind.startswith("byte level"):
        expected = unicodedata.normalize("NFC", expected)
    assert written.decode() in (expected, f" {expected}")


@pytest.mark.parametrize("kind", CLASSIC)
@given(text=hostile_texts)
def test_encode_matches_tokenizers_library(kind: str, text: str) -> None:
    data = {
        "embedded": (vocabularies.EMBEDDED / "tokenizer.json").read_text(),
        "byte level": json.dumps(byte_level_data()),
        "sentencepiece": json.dumps(sentencepiece_data()),
        "metaspace first": json.dumps(vocabularies.metaspace_data()),
        "metaspace always": json.dumps(vocabularies.metaspace_data("always")),
    }[kind]
    library = tokenizers.Tokenizer.from_str(data)
    for around in (False, True):
        expected = library.encode(text, add_special_tokens=around).ids
        assert KINDS[kind].encode(text, special=True, add_special_tokens=around) == expected


@every_kind
@given(text=hostile_texts)
def test_encode_broken_without_marks_equals_encode(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    mark = "\ufdd0"
    ids = tokenizer.encode_broken(text, mark)
    in_pieces = tokenizer.encode_broken(f"{text}{mark}", mark)
    assert ids == in_pieces
    if kind != "unigram":
        assert ids == tokenizer.encode(text, special=True)


@pytest.mark.parametrize("kind", ["embedded", "byte level", "metaspace first"])
def test_encode_broken_escapes_only_marked_control_token(kind: str) -> None:
    tokenizer = KINDS[kind]
    mark = "\ufdd0"
    ids = tokenizer.encode_broken(f"<think>hi<{mark}think> the</think>", mark)
    special = tokenizer.special_tokens
    assert (ids[0], ids[-1]) == (special["<think>"], special["</think>"])
    assert special["<think>"] not in ids[1:]
    assert tokenizer.decode(ids) == "<think>hi<think> the</think>"


def test_encode_broken_inner_piece_gets_no_leading_space() -> None:
    tokenizer = KINDS["metaspace first"]
    ids = tokenizer.encode_broken("<s>hi<\ufdd0s>", "\ufdd0")
    assert tokenizer.token_bytes(ids[1]) == b"hi"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unigram"])
def test_token_bytes_agree_with_llguidance(kind: str) -> None:
    """llguidance supports only BPE."""
    tokenizer = KINDS[kind]
    data = tokenizer_json(kind)
    other = llguidance.LLTokenizer(data, n_vocab=tokenizer.vocab_size)
    for id in range(tokenizer.vocab_size):
        ours = tokenizer.token_bytes(id)
        assert ours in (other.decode_bytes([id]), b"\xff"), id  # its own mark of special tokens


def tokenizer_json(kind: str) -> str:
    if kind == "embedded":
        return (vocabularies.EMBEDDED / "tokenizer.json").read_text()
    if kind.startswith("byte level"):
        return json.dumps(byte_level_data())
    return json.dumps(
        sentencepiece_data() if kind == "sentencepiece" else vocabularies.metaspace_data()
    )


@every_kind
def test_longest_token_counts_bytes(kind: str) -> None:
    tokenizer = KINDS[kind]
    lengths = [len(tokenizer.token_bytes(id)) for id in range(tokenizer.vocab_size)]
    assert tokenizer.longest_token == max(lengths)


def test_token_bytes_split_characters_are_exact() -> None:
    for kind in ("byte level", "sentencepiece"):
        tokenizer = KINDS[kind]
        pieces = [tokenizer.token_bytes(id) for id in tokenizer.encode("𝄞", special=False)]
        assert b"".join(pieces).endswith("𝄞".encode())
        assert b"\xf0" in pieces


def test_token_bytes_unknown_ids_are_empty() -> None:
    tokenizer = KINDS["embedded"]
    assert [tokenizer.token_bytes(id) for id in (-1, tokenizer.vocab_size, 10**9)] == [
        b"",
        b"",
        b"",
    ]
    assert tokenizer.decode([-1, 10**9]) == ""


def test_encode_add_special_tokens_prepends_bos() -> None:
    tokenizer = KINDS["sentencepiece"]
    bos = tokenizer.special_tokens["<s>"]
    assert tokenizer.encode("hi", special=False, add_special_tokens=True)[0] == bos
    assert tokenizer.encode("hi", special=True, add_special_tokens=True)[0] == bos
    assert bos not in tokenizer.encode("<s>hi", special=False)


def test_is_special_follows_vocabulary_flag() -> None:
    tokenizer = KINDS["byte level"]
    special = tokenizer.special_tokens
    assert tokenizer.is_special(special["<think>"])
    assert not tokenizer.is_special(special["[INST]"])
    ids = [special["<think>"], special["[INST]"]]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "[INST]"


def test_encode_lone_surrogate_rejected() -> None:
    for special in (False, True):
        with pytest.raises(RequestError, match="surrogate"):
            KINDS["embedded"].encode("a\ud800b", special=special)


def test_encode_non_special_added_tokens_are_plain_text() -> None:
    data = byte_level_data()
    more = [added(271, "<x>"), added(272, "    ", special=False), added(999, "字", special=False)]
    data["added_tokens"] += more
    tokenizer = build_tokenizer(data)
    for special in (False, True):
        assert tokenizer.encode("a    b", special=special) == [97, 272, 98]
        assert tokenizer.encode("字", special=special) == [273]
    assert tokenizer.encode("<x><think>", special=True)[0] == 271
    assert 271 not in tokenizer.encode("<x>", special=False)
    assert tokenizer.special_tokens["    "] == 272
    assert tokenizer.vocab_size == 274


def test_encode_plain_text_cannot_merge_into_control_token() -> None:
    data = byte_level_data()
    model = data["model"]
    model["ignore_merges"] = False
    model["merges"] += [["<", "s"], ["<s", ">"]]
    model["vocab"] |= {"<s": 400, "<s>": 401}
    data["added_tokens"].append(added(401, "<s>"))
    tokenizer = build_tokenizer(data)
    assert 401 in tokenizer.encode("<s>", special=True)
    assert 401 not in tokenizer.encode("<s>", special=False)
    assert tokenizer.decode(tokenizer.encode("<s>", special=False)) == "<s>"


def test_encode_ignores_truncation_and_padding_of_file() -> None:
    data = byte_level_data()
    data["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    assert len(build_tokenizer(data).encode("abcdef", special=False)) == 6


def test_encode_concurrent_threads_get_own_results() -> None:
    tokenizer = KINDS["embedded"]
    texts = [f"hello the {n} <think> " * 50 for n in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(partial(tokenizer.encode, special=True), texts))
    assert found == [tokenizer.encode(text, special=True) for text in texts]


def build_data(**changes: object) -> Data:
    data = byte_level_data()
    return data | {"model": data["model"] | changes}


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ("{", "not JSON"),
        ("[]", "not JSON"),
        ("{}", "no model"),
        (
            json.dumps({"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"}}),
            "WordPiece",
        ),
        (
            json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}),
            "WordLevel",
        ),
        (json.dumps(build_data(end_of_word_suffix="</w>")), "</w>"),
        (json.dumps(build_data(continuing_subword_prefix="##")), "##"),
        (json.dumps(byte_level_data() | {"decoder": {"type": "CTC"}}), "CTC"),
        (json.dumps(byte_level_data() | {"decoder": None, "pre_tokenizer": None}), "None"),
        (json.dumps(build_data(merges=[["nowhere", "x"]])), "nowhere"),
        (json.dumps(byte_level_data() | {"added_tokens": [{"id": "x"}]}), "added_tokens"),
    ],
)
def test_tokenizer_unusable_for_generation_rejected(data: str, word: str) -> None:
    with pytest.raises(TokenizerError, match=word):
        HfTokenizer(data)


def test_load_tokenizer_adds_tokens_from_config(
    tmp_path: Path,
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_data()))
    more = {"400": {"content": "<tool_response>", "special": True}, "264": {"content": "ignored"}}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": more, "model_max_length": 1})
    )
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.special_tokens["<tool_response>"] == 271
    assert 271 in tokenizer.encode("x<tool_response>", special=True)


@pytest.mark.parametrize(
    "config",
    ["{", '{"added_tokens_decoder": {"x": {"content": "a"}}}', '{"added_tokens_decoder": []}'],
)
def test_load_tokenizer_invalid_config_raises_error(config: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_data()))
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(TokenizerError, match="tokenizer_config"):
        load_tokenizer(tmp_path)


def test_load_tokenizer_in_use_is_shared_by_equal_files(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two", tmp_path / "more"]
    for folder in folders:
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps(byte_level_data(("<shared>",))))
    more = {"added_tokens_decoder": {"900": {"content": "<more>", "special": True}}}
    (folders[2] / "tokenizer_config.json").write_text(json.dumps(more))
    tokenizer = load_tokenizer(folders[0])
    assert load_tokenizer(folders[1]) is tokenizer
    assert load_tokenizer(folders[0], generates=False) is not tokenizer
    assert "<more>" in load_tokenizer(folders[2]).special_tokens
    released = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert released() is None


def test_load_tokenizer_missing_file_raises_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_tokenizer(tmp_path)


FILLER = "The weather in Oslo is fine. " * (MIN_SCANNED_CHARS // 20)
"""A text that makes a prompt long enough to be cached with any tokenizer."""


@every_kind
@given(
    beginning=hostile_texts,
    ends=st.lists(hostile_texts, min_size=1, max_size=3),
    filler=st.sampled_from(("", FILLER)),
    has_mark=st.booleans(),
)
def test_encode_broken_cached_matches_uncached(
    kind: str, beginning: str, ends: list[str], filler: str, has_mark: bool
) -> None:
    tokenizer = KINDS[kind]
    mark = "\ufdd0"
    for end in ends:
        text = f"{beginning}{filler}<think>{filler}{mark if has_mark else ''}{end}"
        expected = tokenizer.encode_broken(text, mark)
        for _ in range(2):
            assert tokenizer.encode_broken(text, mark, cache_owner="a") == expected


@pytest.mark.parametrize("flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}])
@given(text=hostile_texts)
def test_encode_broken_stripping_tokens_match_encode(flags: dict[str, bool], text: str) -> None:
    tokenizer = STRIPPING[next(iter(flags))]
    full = f"{FILLER}{text}"
    assert tokenizer.encode_broken(full, "\ufdd0", cache_owner="a") == tokenizer.encode(
        full, special=True
    )


STRIPPING = {
    flag: build_tokenizer(
        {
            **byte_level_data(()),
            "added_tokens": [
                added(600 + n, name, **{flag: True}) for n, name in enumerate(CONTROLS)
            ],
        }
    )
    for flag in ("lstrip", "rstrip", "single_word")
}


def find_and_count(
    cache: EncodingCache, owner: str, text: str, *, is_first: bool = False
) -> tuple[list[int], int]:
    """Return the cache's results, and how often it encoded."""
    calls: list[str] = []

    def encode(piece: str, begins: bool) -> list[int]:
        calls.append(piece)
        return [len(piece), int(begins)]

    (ids,) = cache.find_or_encode(owner, [text], encode, begins=is_first)
    return list(ids), len(calls)


def test_encoding_cache_entry_per_owner_and_position() -> None:
    cache = EncodingCache(10 * ENTRY_CHARS)
    assert find_and_count(cache, "a", "text") == ([4, 0], 1)
    assert find_and_count(cache, "a", "text") == ([4, 0], 0)
    assert find_and_count(cache, "b", "text") == ([4, 0], 1)
    assert find_and_count(cache, "a", "text", is_first=True) == ([4, 1], 1)


def test_encoding_cache_full_evicts_least_recently_used() -> None:
    size = 3 * (30 + ENTRY_CHARS) + 10
    cache = EncodingCache(size)
    for name in "abc":
        find_and_count(cache, "", name * 30)
    assert find_and_count(cache, "", "a" * 30)[1] == 0
    find_and_count(cache, "", "d" * 30)
    assert [find_and_count(cache, "", name * 30)[1] for name in "acd"] == [0, 0, 0]
    assert find_and_count(cache, "", "b" * 30)[1] == 1
    assert cache.n_chars <= size
    assert [find_and_count(cache, "", "e" * size)[1] for _ in range(2)] == [1, 1], (
        "a text larger than the cache is not cached"
    )
    assert cache.n_chars <= size


@pytest.mark.parametrize("length", [40, 30_000])
def test_encode_pattern_giving_up_raises_request_error(length: int) -> None:
    """The library panics: a pattern of the file backtracks too often on the text."""
    data = json.loads((vocabularies.EMBEDDED / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
    parts = [{**split, "invert": False}, data["pre_tokenizer"]]
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
    tokenizer = HfTokenizer(data)
    with pytest.raises(RequestError, match="cannot encode this text"):
        tokenizer.encode("a" * length + "b", special=False)
    assert tokenizer.encode("hello", special=False)


def test_tokenizer_with_exploding_normalizers_is_rejected() -> None:
    """The library would abort the process when memory ends."""
    data = json.loads((vocabularies.EMBEDDED / "tokenizer.json").read_text())
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 16}
    accepted = {"type": "Sequence", "normalizers": [replace, replace]}
    HfTokenizer(data | {"normalizer": accepted})
    nested = {"type": "Sequence", "normalizers": [replace, accepted]}
    with pytest.raises(TokenizerError, match="4096 times as long; at most 256 is accepted"):
        HfTokenizer(data | {"normalizer": nested})
