"""The way in: a call's requests on a model become one stream of batches of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from ..core.events import Event
from ..core.request import GenerateRequest
from .admission import Terms
from .merge import best, merge
from .models import ServedModel
from .prepare import Job, TokenJob, prepare
from .relay import EventRun
from .residence import Kept
from .tokens import TokenRun


@dataclass(frozen=True, slots=True)
class Run:
    """An admitted call. Nothing has reached the engine until `batches` is iterated; closing it is cancelling.

    admitted: nothing but overload or a failure can refuse it any more, so that headers need not wait long.
    """

    batches: AsyncGenerator[list[Event]]
    warnings: tuple[str, ...]
    admitted: bool


async def admit(model: ServedModel, requests: Sequence[GenerateRequest], terms: Terms) -> Run:
    """requests: one a prompt. Raises RequestError for anything that can be told before the engine is asked."""
    with model.held():
        return await _admit(model, requests, terms)


async def _admit(model: ServedModel, requests: Sequence[GenerateRequest], terms: Terms) -> Run:
    jobs: list[Job] = []
    warnings: dict[str, None] = {}
    for index, request in enumerate(requests):
        job, said = await prepare(model, request, terms, index)
        jobs.append(job)
        warnings |= dict.fromkeys(said)
    streams = [_stream(job, request) for job, request in zip(jobs, requests, strict=True)]
    batches = merge(streams)
    if model.presence is not None:
        batches = Kept(model.presence, batches)
    return Run(batches, tuple(warnings), all(isinstance(job, TokenJob) for job in jobs))


def _stream(job: Job, request: GenerateRequest) -> AsyncGenerator[list[Event]]:
    batches = TokenRun(job).batches() if isinstance(job, TokenJob) else EventRun(job).batches()
    candidates = request.best_of or 0
    return best(batches, request.choices) if candidates > request.choices else batches
