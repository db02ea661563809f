"""The metadata of GGUF files, and files that are not GGUF."""

from __future__ import annotations

import struct
from array import array
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import EngineError
from dragoman.engines.llamacpp import find_end_tokens, read_metadata
from dragoman.engines.llamacpp.gguf_metadata import GgufMetadata, Texts, read_metadata_and_size

U32 = 4
F32 = 6
BOOL = 7
STRING = 8
ARRAY = 9


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def strings(*values: str) -> bytes:
    return struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))


ENTRIES = [
    entry("general.architecture", STRING, text("llama")),
    entry("llama.context_length", U32, struct.pack("<I", 64)),
    entry("a.float", F32, struct.pack("<f", 0.5)),
    entry("a.flag", BOOL, b"\x01"),
    entry("a.numbers", ARRAY, struct.pack("<IQ3I", U32, 3, 7, 8, 9)),
    entry("tokenizer.ggml.tokens", ARRAY, strings("a", "<|im_end|>", "京")),
]


def gguf(entries: list[bytes], *, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(entries)) + b"".join(entries)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def tensor(name: str, *shape: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0)


def test_read_metadata_and_size_sums_all_parts(tmp_path: Path) -> None:
    for number, tensors in ((1, [tensor("a", 3, 4), tensor("b", 5)]), (2, [tensor("c", 2, 2, 2)])):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(ENTRIES))
        write(
            tmp_path / f"m-0000{number}-of-00002.gguf", head + b"".join(ENTRIES) + b"".join(tensors)
        )
    metadata, size = read_metadata_and_size(tmp_path / "m-00001-of-00002.gguf")
    assert (metadata.architecture, size) == ("llama", 12 + 5 + 8)
    cut_off = write(tmp_path / "n.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1, 0))
    with pytest.raises(EngineError, match="truncated or damaged"):
        read_metadata_and_size(cut_off)


def test_read_metadata_parses_all_value_types(tmp_path: Path) -> None:
    found = read_metadata(write(tmp_path / "m.gguf", gguf(ENTRIES)))
    assert (
        found.architecture,
        found.get_number(found.build_architecture_key("context_length")),
        found.get_flag("a.flag"),
    ) == ("llama", 64, True)
    assert (found.get_numbers("a.numbers"), found.values["a.float"]) == ((7, 8, 9), 0.5)
    tokens = found.get_texts("tokenizer.ggml.tokens")
    assert found.vocab_size == len(tokens) == 3
    assert list(tokens) == [tokens[0], *tokens[1:]] == ["a", "<|im_end|>", "京"]
    assert found.get_numbers("tokenizer.ggml.tokens") == ()
    assert found.get_texts("general.architecture") == ("llama",)
    assert (found.get_text("a.flag"), found.get_number("a.flag"), found.get_text("no.such")) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (gguf(ENTRIES, version=1), "version 1"),
        (gguf(ENTRIES)[:-2], "truncated or damaged"),
        (gguf([entry("x", 77, b"")]), "type 77"),
        (gguf([text("x" * 8)[:4] + b"\xff" * 8]), "truncated or damaged"),
        (gguf([entry("x", ARRAY, struct.pack("<IQ", U32, 2**62))]), "truncated or damaged"),
        (gguf([entry("x", ARRAY, struct.pack("<IQ", STRING, 2**40))]), "truncated or damaged"),
        (gguf([entry("x", ARRAY, strings("ab", "cd")[:-1])]), "truncated or damaged"),
        (gguf([entry("x", ARRAY, strings("ab", "cd")[:-4])]), "truncated or damaged"),
        (
            gguf([entry("x", ARRAY, struct.pack("<IQQ", STRING, 2, 2**64 - 1) + bytes(8))]),
            "truncated or damaged",
        ),
        (gguf(ENTRIES[1:]), "general.architecture"),
    ],
)
def test_read_metadata_invalid_file_raises_with_reason(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    with pytest.raises(EngineError, match=reason):
        read_metadata(write(tmp_path / "m.gguf", data))


@given(cut=st.integers(0, len(gguf(ENTRIES)) - 1), flip=st.integers(0, 255))
def test_read_metadata_damaged_file_raises_only_engine_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int
) -> None:
    data = bytearray(gguf(ENTRIES))
    data[cut] ^= flip
    path = write(tmp_path_factory.getbasetemp() / "damaged.gguf", bytes(data))
    with suppress(EngineError):
        read_metadata(path)


def test_read_metadata_split_model_requires_first_part(tmp_path: Path) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf", gguf(ENTRIES))
    with pytest.raises(EngineError, match=r"is missing its part m-00002-of-00002\.gguf"):
        read_metadata(first)
    second = write(tmp_path / "m-00002-of-00002.gguf", gguf(ENTRIES))
    assert read_metadata(first).architecture == "llama"
    with pytest.raises(EngineError, match=r"the first is m-00001-of-00002\.gguf"):
        read_metadata(second)


def test_read_metadata_name_with_zero_parts_is_single_file(tmp_path: Path) -> None:
    assert (
        read_metadata(write(tmp_path / "m-00001-of-00000.gguf", gguf(ENTRIES))).architecture
        == "llama"
    )


def metadata(*, tokens: tuple[str, ...], **ids: int) -> GgufMetadata:
    starts = accumulate((len(text(token)) for token in tokens[:-1]), initial=0)
    texts = Texts(b"".join(map(text, tokens)), array("Q", starts))
    return GgufMetadata(
        Path("m.gguf"),
        {f"tokenizer.ggml.{name}": value for name, value in (*ids.items(), ("tokens", texts))},
    )


def test_find_end_tokens_uses_metadata_and_known_names() -> None:
    assert find_end_tokens(
        metadata(eos_token_id=7, eot_token_id=9, tokens=("a", "<|im_end|>", *"bcdefghi"))
    ) == {
        1,
        7,
        9,
    }
    harmony = metadata(
        eos_token_id=0, tokens=("<|return|>", "<|call|>", "<|end|>", "<|endoftext|>")
    )
    assert find_end_tokens(harmony) == {0, 1, 3}
    with pytest.raises(EngineError, match="no end-of-sequence token"):
        find_end_tokens(metadata(tokens=("a",)))
