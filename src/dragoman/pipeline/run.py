"""The way in: a call's requests on a model become one stream of batches of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from ..core.events import Event
from ..core.request import GenerateRequest
from ..prompts.spelling import since_control
from .admission import Terms
from .engine_calls import limit_time
from .merge import best, merge
from .meter import Meters, Tally, counted
from .models import ServedModel, TokenBackend
from .prepare import Job, TokenJob, prepare
from .relay import EventRun
from .residence import Kept
from .tokens import TokenRun


@dataclass(frozen=True, slots=True)
class Run:
    """An admitted call. Nothing has reached the engine until `batches` is iterated; closing it is cancelling.

    admitted: nothing but overload or a failure can refuse it any more, so that headers need not wait long.
    opening: the ids of the first prompt that an answer goes on from, see `prompts.spelling`; None where the engine
    tells no ids.
    jobs: what was made of each prompt.
    """

    batches: AsyncGenerator[list[Event]]
    warnings: tuple[str, ...]
    admitted: bool
    opening: tuple[int, ...] | None = None
    jobs: tuple[Job, ...] = ()


async def admit(
    model: ServedModel, requests: Sequence[GenerateRequest], terms: Terms, meters: Meters | None = None
) -> Run:
    """requests: one a prompt. meters: where they are counted, if anywhere.

    Raises RequestError for anything that can be told before the engine is asked.
    """
    tallies = [None if meters is None else meters.tally(model) for _ in requests]
    with model.held():
        return await _admit(model, requests, terms, tallies)


async def _admit(
    model: ServedModel, requests: Sequence[GenerateRequest], terms: Terms, tallies: Sequence[Tally | None]
) -> Run:
    jobs: list[Job] = []
    warnings: dict[str, None] = {}
    for index, request in enumerate(requests):
        job, said = await prepare(model, request, terms, index)
        jobs.append(job)
        warnings |= dict.fromkeys(said)
    streams = [_stream(model, *each) for each in zip(jobs, requests, tallies, strict=True)]
    batches = merge(streams)
    if terms.timeout is not None:
        batches = limit_time(batches, terms.timeout)
    if model.presence is not None:
        batches = Kept(model.presence, batches)
    admitted = all(isinstance(job, TokenJob) for job in jobs)
    return Run(batches, tuple(warnings), admitted, _opening(model, jobs[0]), tuple(jobs))


def _opening(model: ServedModel, job: Job) -> tuple[int, ...] | None:
    if not isinstance(job, TokenJob) or not isinstance(model.backend, TokenBackend):
        return None
    return since_control(job.prompt, model.backend.tokenizer.control_ids)


def _stream(model: ServedModel, job: Job, request: GenerateRequest, tally: Tally | None) -> AsyncGenerator[list[Event]]:
    progress = model.progress
    run = TokenRun(job, progress) if isinstance(job, TokenJob) else EventRun(job, progress)
    batches = run.batches() if tally is None else counted(run.batches(), tally)
    candidates = request.best_of or 0
    return best(batches, request.choices) if candidates > request.choices else batches
