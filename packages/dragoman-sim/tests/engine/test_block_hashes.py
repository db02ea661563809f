"""Block hashes that indexes of other programs compute themselves."""

from __future__ import annotations

from hashlib import sha256

import pytest

from dragoman_sim.engine.block_hashes import BlockHasher, HashAlgorithm, TokenContents
from dragoman_sim.engine.cbor import encode_cbor
from dragoman_sim.engine.kv_events import truncate_hash

TOKENS = list(range(1, 129))


def list_hashes(algorithm: HashAlgorithm, seed: str, block_size: int) -> list[int]:
    contents = TokenContents(block_size, TOKENS, hasher=BlockHasher(algorithm, seed))
    return [
        truncate_hash(contents.get_block_hash(index)) for index in range(len(TOKENS) // block_size)
    ]


def test_cbor_hashes_follow_rule_of_llm_d() -> None:
    """llm-d-kv-cache, pkg/kvcache/kvblock/token_processor.go, with seed 10 and 64 tokens: the
    last 8 bytes of the SHA-256 of the CBOR of [parent, tokens, nil]; the first parent is
    the digest of the seed.
    """
    parent = sha256(b"\x6210").digest()
    expected: list[int] = []
    for begin in (1, 65):
        tokens = b"".join(
            bytes((token,)) if token < 24 else bytes((0x18, token))
            for token in range(begin, begin + 64)
        )
        parent = sha256(b"\x83\x58\x20" + parent + b"\x98\x40" + tokens + b"\xf6").digest()
        expected.append(int.from_bytes(parent[24:], "big"))
    assert list_hashes("sha256_cbor", "10", 64) == expected == PINNED["sha256_cbor"]


def test_64_bit_hashes_follow_rule_of_earlier_llm_d() -> None:
    """The parent is the number that the event of the block before had."""
    parent = int.from_bytes(sha256(b"\x6210").digest()[24:], "big")
    expected: list[int] = []
    for begin in (1, 65):
        payload = encode_cbor((parent, tuple(range(begin, begin + 64)), None))
        parent = int.from_bytes(sha256(payload).digest()[24:], "big")
        expected.append(parent)
    assert list_hashes("sha256_cbor_64bit", "10", 64) == expected == PINNED["sha256_cbor_64bit"]


PINNED: dict[HashAlgorithm, list[int]] = {
    "sha256_cbor": [6157663189479258408, 9639222263525341149],
    "sha256_cbor_64bit": [11354551564944918244, 6998468615004494816],
}


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, "f6"),
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65536, "1a00010000"),
        (2**32, "1b0000000100000000"),
        (2**64 - 1, "1bffffffffffffffff"),
        (-1, "20"),
        (-500, "3901f3"),
        (b"\x01\x02", "420102"),
        ("IETF", "6449455446"),
        ("\u00fc", "62c3bc"),
        ((1, ("a", -2), None), "8301826161" + "21f6"),
    ],
)
def test_encode_cbor_matches_rfc_8949(value: object, encoded: str) -> None:
    assert encode_cbor(value).hex() == encoded


def test_encode_cbor_of_other_type_raises() -> None:
    with pytest.raises(TypeError, match="float has no encoding"):
        encode_cbor((1.5,))


def test_unknown_seed_and_algorithm_change_hashes() -> None:
    hashes = [
        tuple(list_hashes(algorithm, seed, 16))
        for algorithm in ("sha256", "sha256_cbor", "sha256_cbor_64bit")
        for seed in ("0", "42")
    ]
    assert len(set(hashes)) == 6
