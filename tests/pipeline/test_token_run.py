"""One prompt on an engine of tokens, where the engine does what the kit's engines never do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dragoman.core.engine import Capabilities, Health, OutputCallback, Rejected, TokenRequest
from dragoman.core.errors import RequestError
from dragoman.core.request import GenerateRequest, GenerationLimits
from dragoman.launch import build_models
from dragoman.pipeline.models import ServedModel, TokenBackend
from dragoman.pipeline.run import admit
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.testing.subject import build_conversation, build_terms


class Late:
    """Takes every request, and then finds out that it cannot."""

    capabilities = Capabilities()

    def __init__(self) -> None:
        self.aborted: list[str] = []

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        deliver(Rejected(request.id, RequestError("not this one", param="temperature")))

    def abort(self, id: str) -> None:
        self.aborted.append(id)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()


@pytest.fixture(scope="module")
def tiny() -> ServedModel:
    return next(iter(build_models(Settings(), SystemClock())))


async def test_what_an_engine_refuses_late_is_refused_as_if_it_had_told_at_once(tiny: ServedModel) -> None:
    assert isinstance(tiny.backend, TokenBackend)
    engine = Late()
    model = replace(tiny, backend=replace(tiny.backend, engine=engine))
    request = GenerateRequest(model.name, build_conversation("Hello"), choices=2, limits=GenerationLimits(max_tokens=3))
    run = await admit(model, [request], build_terms())
    with pytest.raises(RequestError, match="not this one") as refused:
        await anext(run.batches)
    assert refused.value.param == "temperature"
    assert len(engine.aborted) == 2
