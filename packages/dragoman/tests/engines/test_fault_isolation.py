"""One of 64 sequences has a fault: it fails alone, and the other 63 are answered as
without it. Every engine with every kind of fault.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from dragoman.core.errors import Unsupported
from dragoman.core.prompt_images import PromptImage
from dragoman.core.token_engine import Ended, Failed, Rejected, TokenEngine, TokenRequest
from dragoman.engines import tiny
from dragoman.engines.batching import (
    BatchingEngine,
    EngineConfig,
    EngineLimits,
    Model,
    SchedulerConfig,
    build_rng,
)
from dragoman.engines.tiny.llama import Llama
from dragoman.engines.tiny.paged_llama import PagedLlama

from .faults import FaultyModel, NanModel, raise_for
from .harness import GREEDY, AllowedTokensMatcher, EngineClient, Outputs

COUNT = 64
BAD = 31
BAD_ID = "bad"
NAN_TOKEN = 2000
"""Its embedding in the GGUF file is NaN."""

FAULTS = ("exception", "nan", "out of memory", "image", "grammar")
NO_IMAGES = "does not accept images"
"""The engine rejects the request before it runs, so no image can be bad."""

STEP = "The engine failed while computing a step: "
NUMBERS = "The model returned invalid probabilities."
GRAMMAR = "grammar"
BATCHING = {
    "exception": f"{STEP}index out of range",
    "nan": NUMBERS,
    "out of memory": f"{STEP}out of memory",
    "image": "The model failed to process an image: cannot identify image file",
    "grammar": GRAMMAR,
}
EXPECTED: dict[str, Mapping[str, str]] = {
    "tiny": {**BATCHING, "image": NO_IMAGES},
    "transformers": BATCHING,
    "mlx": {**BATCHING, "image": NO_IMAGES},
    # llama.cpp reports an exception and an allocation that fails to all sequences of the
    # step; an error of a kernel ends its process, see test_models.py.
    "llamacpp": {
        "exception": "llama.cpp: Invalid input batch.",
        "nan": NUMBERS,
        "out of memory": "llama.cpp: Compute error.",
        "image": "llama.cpp: Failed to load image or audio file",
        "grammar": GRAMMAR,
    },
}
"""What the client is told, by engine and fault."""
MARKS = {
    "tiny": (),
    "transformers": pytest.mark.torch,
    "mlx": pytest.mark.mlx,
    "llamacpp": pytest.mark.llamacpp,
}


class Subject(NamedTuple):
    """An engine with 64 requests.

    start: starts an engine in which the request `BAD_ID` has a fault.
    prompts: those of the requests.
    bad: the request with the fault.
    """

    start: Callable[[], AbstractAsyncContextManager[TokenEngine]]
    prompts: Sequence[tuple[int, ...]]
    bad: TokenRequest


class BadImageRunner:
    """A vision runner that cannot read any image."""

    def prepare_images(self, images: Sequence[PromptImage]) -> None:
        raise ValueError(f"cannot identify image file ({len(images)})")


def build_matcher() -> AllowedTokensMatcher:
    return AllowedTokensMatcher([range(96)] * 8, fail_at=2)


def build_batching(
    model: Model, fault: str, *, vision_runner: BadImageRunner | None = None
) -> Subject:
    prompts = [tuple(3 + (n * k) % 90 for k in range(1, 20 + n % 7)) for n in range(1, COUNT + 1)]
    bad = TokenRequest(id=BAD_ID, prompt=prompts[BAD], max_tokens=8, sampling=GREEDY)
    if fault == "nan":
        model = NanModel(model, BAD_ID)
    elif fault == "exception":
        model = FaultyModel(model, raise_for(BAD_ID, position=len(bad.prompt) + 2))
    elif fault == "out of memory":
        model = FaultyModel(model, raise_for(BAD_ID, error=MemoryError("out of memory")))
    elif fault == "image":
        bad = replace(bad, images=(PromptImage(4, 8, b"i" * 16, None),))
    else:
        bad = replace(bad, matcher=build_matcher())
    scheduler = SchedulerConfig(max_num_seqs=COUNT, max_num_batched_tokens=512)
    config = EngineConfig(64, 64 * COUNT, scheduler=scheduler)

    @asynccontextmanager
    async def start() -> AsyncGenerator[TokenEngine]:
        engine = BatchingEngine(model, config, build_rng, vision_runner=vision_runner)
        await engine.start()
        yield engine
        await engine.stop()

    return Subject(start, prompts, bad)


def build_transformers(fault: str) -> Subject:
    models = import_module("tests.engines.transformers.test_models")
    model, _ = models.build_paged_model(models.network("llama"))
    return build_batching(model, fault, vision_runner=BadImageRunner())


def build_mlx(fault: str) -> Subject:
    models = import_module("tests.engines.mlx.test_models")
    model, _ = models.build_paged_model(models.network("llama"), vocab=96, max_positions=512)
    return build_batching(model, fault)


def build_llamacpp(fault: str, folder: Path, patch: pytest.MonkeyPatch) -> Subject:
    pytest.importorskip("xllamacpp", reason="needs xllamacpp")
    files = import_module("tests.engines.llamacpp.files")
    steps = import_module("tests.engines.llamacpp.failing_steps")
    llamacpp = import_module("dragoman.engines.llamacpp")
    loading = import_module("dragoman.engines.llamacpp.load")
    vision = import_module("dragoman.engines.llamacpp.vision")
    from dragoman.launch.engines.llamacpp.build import build_gguf_tokenizer

    files.write_llama(folder / "tiny.gguf", tiny.find_bundled_model(), nan_tokens=[NAN_TOKEN])
    metadata = llamacpp.read_metadata(folder / "tiny.gguf")
    tokenizer = build_gguf_tokenizer(metadata)
    prompts = [
        tuple(tokenizer.encode(f"<|im_start|>user\nCount to {n}.<|im_end|>\n", special=True))
        for n in range(COUNT)
    ]
    bad = TokenRequest(id=BAD_ID, prompt=prompts[BAD], max_tokens=8, sampling=GREEDY)
    projector = None
    if fault == "nan":
        bad = replace(bad, prompt=(*bad.prompt, NAN_TOKEN))
    elif fault == "grammar":
        bad = replace(bad, matcher=build_matcher())
    elif fault == "image":
        token = vision.ImageToken("<|im_start|>", 1)
        mmproj = llamacpp.read_metadata(files.write_projector(folder / "mmproj.gguf"))
        projector = loading.Projector(mmproj, token)
        noise = vision.EncodedImage("bm90IGFuIGltYWdl", 4)
        bad = replace(bad, images=(PromptImage(4, 8, b"i" * 16, noise),))
    else:
        # A token that no other prompt has.
        bad = replace(bad, prompt=(*bad.prompt, NAN_TOKEN - 1))
        message = EXPECTED["llamacpp"][fault].removeprefix("llama.cpp: ")
        steps.fail_steps(patch, NAN_TOKEN - 1, message)

    @asynccontextmanager
    async def start() -> AsyncGenerator[TokenEngine]:
        limits = EngineLimits(max_model_len=64, max_num_seqs=COUNT, num_kv_tokens=48 * COUNT)
        options = llamacpp.LlamaCppOptions("float32", threads=1, deterministic=True)
        engine = llamacpp.load(metadata, tokenizer, limits, options, projector=projector).engine
        await engine.start()
        yield engine
        await engine.stop()

    return Subject(start, prompts, bad)


@pytest.fixture(
    params=[
        pytest.param((engine, fault), id=f"{engine}-{fault}", marks=MARKS[engine])
        for engine in EXPECTED
        for fault in FAULTS
    ]
)
def case(
    request: pytest.FixtureRequest,
    small_model: Llama,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Subject, str]:
    """Yield a subject with the message that the client must be told."""
    engine, fault = request.param
    if engine == "tiny":
        subject = build_batching(PagedLlama(small_model), fault)
    elif engine == "llamacpp":
        subject = build_llamacpp(fault, tmp_path, monkeypatch)
    else:
        subject = {"transformers": build_transformers, "mlx": build_mlx}[engine](fault)
    return subject, EXPECTED[engine][fault]


async def run_all(
    subject: Subject, client: EngineClient, bad: TokenRequest | None = None, salt: str = "clean"
) -> list[Outputs]:
    """Run all requests at once, and return their outputs.

    bad: takes the place of one request.
    salt: requests with another one share no prefix cache.
    """
    streams: list[Outputs] = []
    for number, prompt in enumerate(subject.prompts):
        ask = TokenRequest(
            id=str(number), prompt=prompt, max_tokens=8, sampling=GREEDY, cache_salt=salt
        )
        if bad is None or number != BAD:
            streams.append(client.send(ask))
            continue
        try:
            streams.append(client.send(replace(bad, cache_salt=salt)))
        except Unsupported as error:
            streams.append(Outputs([Rejected(BAD_ID, error)]))
    await client.ends(*(one for one in streams if not isinstance(next(iter(one), None), Rejected)))
    return streams


async def test_fault_of_one_sequence_leaves_63_unharmed(case: tuple[Subject, str]) -> None:
    subject, message = case
    async with subject.start() as engine:
        client = EngineClient(engine)
        expected = await run_all(subject, client)
        streams = await run_all(subject, client, subject.bad, "faulty")
        again = await run_all(subject, client, salt="faulty")
        assert engine.health().ready
    for number, (stream, known) in enumerate(zip(streams, expected, strict=True)):
        assert isinstance(known.end, Ended)
        assert len(known.tokens) == 8
        if number == BAD:
            (failure,) = (one for one in stream if isinstance(one, Failed | Rejected))
            text = failure.message if isinstance(failure, Failed) else failure.error.message
            assert message in text
        else:
            assert (stream.tokens, stream.end) == (known.tokens, known.end)
            assert len(stream.cached) == 1
    # Nothing of the fault is left in the cache.
    assert [one.tokens for one in again] == [one.tokens for one in expected]


def test_every_engine_has_an_expectation_for_every_fault() -> None:
    assert {tuple(faults) for faults in EXPECTED.values()} == {FAULTS}
