"""The simulator's block hashes and those of vLLM's own functions."""

from __future__ import annotations

from collections.abc import Generator
from importlib import import_module
from typing import Any

import pytest

from dragoman.core.prompt_images import PromptImage
from dragoman_sim.engine.block_hashes import (
    DEFAULT_SEED,
    BlockHasher,
    CacheKeys,
    HashAlgorithm,
    TokenContents,
)

from .serving import without_accelerator

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]
BLOCK_SIZE = 4
TOKENS = [0, 23, 24, 255, 256, 65535, 65536, 151_643, 2**31 - 1, 7, 7, 8, 9, 10, 11, 12, 13]
IMAGES = (
    PromptImage(begin=1, end=6, digest=b"one", model_inputs=None),
    PromptImage(begin=6, end=10, digest=b"two", model_inputs=None),
)


@pytest.fixture(scope="module")
def utils() -> Generator[Any]:
    with without_accelerator():
        yield import_module("vllm.v1.core.kv_cache_utils")


class VllmRequest:
    """What vLLM's functions read of a request."""

    prompt_embeds = None

    def __init__(self, keys: CacheKeys, images: tuple[PromptImage, ...]) -> None:
        self.all_token_ids = TOKENS
        self.num_tokens = len(TOKENS)
        self.block_hashes: list[bytes] = []
        self.cache_salt = keys.salt
        self.lora_request = (
            _Fields(lora_name=keys.lora, lora_path=keys.lora_path) if keys.lora else None
        )
        self.mm_features = [
            _Fields(
                identifier=image.digest.hex(),
                mm_position=_Fields(offset=image.begin, length=image.end - image.begin),
            )
            for image in images
        ]


class _Fields:
    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)


@pytest.mark.parametrize("seed", [None, "42"])
@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
@pytest.mark.parametrize(
    ("keys", "images"),
    [
        (CacheKeys(), ()),
        (CacheKeys("poet", "/adapters/poet"), ()),
        (CacheKeys(salt="sälz"), ()),
        (CacheKeys(), IMAGES),
        (CacheKeys("poet", "/adapters/poet", "salt"), IMAGES),
    ],
)
def test_block_hashes_equal_those_of_vllm(
    seed: str | None,
    algorithm: HashAlgorithm,
    keys: CacheKeys,
    images: tuple[PromptImage, ...],
    utils: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if algorithm.startswith("xxhash"):
        pytest.importorskip("xxhash")
        seed = seed or "not secret"
    if seed is None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    else:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    hash_function = import_module("vllm.utils.hashing").get_hash_fn_by_name(algorithm)
    monkeypatch.setattr(utils, "NONE_HASH", None, raising=False)
    utils.init_none_hash(hash_function)
    theirs = utils.get_request_block_hasher(BLOCK_SIZE, hash_function)(VllmRequest(keys, images))
    contents = TokenContents(
        BLOCK_SIZE,
        TOKENS,
        keys,
        images=images,
        hasher=BlockHasher(algorithm, seed or DEFAULT_SEED),
    )
    assert [contents.get_block_hash(index) for index in range(len(theirs))] == theirs
    assert len(theirs) == 4


def test_hash_algorithms_are_those_of_vllm() -> None:
    choices = import_module("vllm.config.cache").PrefixCachingHashAlgo.__args__
    assert set(choices) == set(HashAlgorithm.__args__) - {"sha256_cbor_64bit"}
