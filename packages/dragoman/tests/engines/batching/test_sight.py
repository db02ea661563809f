"""Images of sequences: prefix cache keys, and images that cannot be processed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dragoman.core.capabilities import Feature
from dragoman.core.errors import Unsupported
from dragoman.core.prompt_images import PromptImage
from dragoman.core.token_engine import Failed, TokenRequest
from dragoman.engines.batching import BatchingEngine, EngineConfig, build_rng
from dragoman.engines.tiny.llama import Llama
from dragoman.engines.tiny.paged_llama import PagedLlama

from ..harness import GREEDY, StepperHarness, run_alone, run_client

RED = PromptImage(20, 36, b"r" * 16, None)
BLUE = PromptImage(20, 36, b"b" * 16, None)
ASK = TokenRequest(id="a", prompt=tuple(range(3, 67)), max_tokens=4, sampling=GREEDY)


class RedImageRunner:
    """A vision runner that fails on all images but red ones."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def prepare_images(self, images: Sequence[PromptImage]) -> None:
        self.seen += [image.digest for image in images]
        if images[0].digest != RED.digest:
            raise MemoryError


def engine(model: Llama, sight: RedImageRunner | None) -> BatchingEngine:
    return BatchingEngine(
        PagedLlama(model), EngineConfig(512, 2048), build_rng, vision_runner=sight
    )


def test_prefix_cache_distinguishes_images_with_equal_ids(small_model: Llama) -> None:
    bench = StepperHarness(small_model)
    cached: list[int] = []
    for images in ((RED,), (RED,), (BLUE,), ()):
        outputs = bench.add(replace(ASK, images=images))
        bench.finish()
        cached += outputs.cached
    assert cached == [0, 48, 16, 16]


async def test_image_encode_error_fails_only_its_request(small_model: Llama) -> None:
    eyes = RedImageRunner()
    async with run_client(engine(small_model, eyes)) as client:
        asks = [
            replace(ASK, id=str(n), images=images) for n, images in enumerate([(RED,), (BLUE,), ()])
        ]
        streams = [client.send(ask) for ask in asks]
        await client.ends(*streams)
        assert isinstance(streams[1].end, Failed)
        assert [streams[0].tokens, streams[2].tokens] == [run_alone(small_model, ASK).tokens] * 2
        assert eyes.seen == [RED.digest, BLUE.digest]
        assert client.engine.health().running == 0


async def test_model_without_vision_rejects_images(small_model: Llama) -> None:
    async with run_client(engine(small_model, None)) as client:
        assert Feature.IMAGES not in client.engine.capabilities.features
        with pytest.raises(Unsupported, match="does not accept images"):
            client.send(replace(ASK, images=(RED,)))
