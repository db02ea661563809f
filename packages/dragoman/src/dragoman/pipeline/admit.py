"""Admission of a call to the pipeline: its prompts become one stream of event batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from ..core.events import Event, Finished, PromptTokens, Started, Token, Usage, get_answer_tokens
from ..core.request import GenerateRequest
from ..prompts.token_replay import find_ids_since_control
from .call_terms import CallTerms
from .engine_backends import TokenBackend
from .engine_timeout import limit_time
from .event_run import EventRun
from .merge import Batches, merge_choices, merge_prompts
from .model_lease import Lease
from .request_metrics import ModelMetrics, RequestMetrics, measure
from .request_preparation import NO_IDS, EventJob, Job, TokenJob, prepare_job
from .served_model import ServedModel
from .token_run import TokenRun

DirectRun = TokenRun | EventRun
"""A run to which a receiver can be attached."""


class AdmittedRun(Struct, frozen=True):
    """An admitted call. Nothing has reached the engine until `batches` is iterated;
    closing it cancels the call.

    batches: the batches of events.
    warnings: warnings for the client.
    is_admitted: only overload or a failure can still reject the call, so response
        headers need not wait long.
    control_ids: ids of the tokenizer's control tokens; empty if the engine reports no
        ids.
    jobs: one job per prompt.
    direct: the run that yields the batches, to which a receiver may be attached; None
        if batches are merged or ranked.
    """

    batches: Batches
    warnings: tuple[str, ...]
    is_admitted: bool
    control_ids: frozenset[int] = frozenset()
    jobs: tuple[Job, ...] = ()
    direct: DirectRun | None = None

    def find_resume_ids(self) -> tuple[int, ...] | None:
        """Return the first prompt's ids since its last control token, see
        `prompts.token_replay`.

        Return None if the engine reports no ids.
        """
        job = self.jobs[0] if self.jobs else None
        return (
            find_ids_since_control(job.prompt, self.control_ids)
            if isinstance(job, TokenJob)
            else None
        )


async def admit(
    model: ServedModel,
    requests: Sequence[GenerateRequest],
    terms: CallTerms,
    metrics: ModelMetrics | None = None,
) -> AdmittedRun:
    """Admit a call.

    requests: one request per prompt.
    metrics: counts the requests; None means no metrics.

    Raises:
        RequestError: the call is rejected before the engine is involved.
    """
    request_metrics = [None if metrics is None else metrics.start_request(model) for _ in requests]
    jobs: list[Job] = []
    warnings: dict[str, None] = {}
    # Preparation awaits, during which the model must stay loaded. The lease in
    # `batches` takes over before this ends.
    with model.keep_loaded():
        for index, request in enumerate(requests):
            job, job_warnings = await prepare_job(model, request, terms, index)
            jobs.append(job)
            warnings |= dict.fromkeys(job_warnings)
        streams = [
            _build_stream(model, *prompt)
            for prompt in zip(jobs, requests, request_metrics, strict=True)
        ]
        batches = merge_prompts([stream for stream, _ in streams])
        if terms.timeout is not None:
            batches = limit_time(batches, terms.timeout)
        # The lease is the outermost layer, so the model stays loaded until every inner
        # generator has been closed.
        if model.usage_guard is not None:
            batches = Lease(model.usage_guard, batches)
    is_admitted = isinstance(model.backend, TokenBackend)
    control_ids = (
        model.backend.tokenizer.control_ids if isinstance(model.backend, TokenBackend) else NO_IDS
    )
    # Several prompts are merged through a queue, so their events cannot be delivered
    # directly.
    direct = streams[0][1] if len(streams) == 1 else None
    return AdmittedRun(batches, tuple(warnings), is_admitted, control_ids, tuple(jobs), direct)


def _build_stream(
    model: ServedModel, job: Job, request: GenerateRequest, metrics: RequestMetrics | None
) -> tuple[Batches, DirectRun | None]:
    """Build the batches of one prompt. Return them, and the run to which a receiver may
    be attached, if any.
    """
    if isinstance(job, EventJob) and job.request.choices > 1 and model.capabilities.has_one_choice:
        one_choice = msgspec.structs.replace(
            job, request=msgspec.structs.replace(job.request, choices=1)
        )
        batches = merge_choices(
            [
                EventRun(one_choice, model.progress).stream_batches()
                for _ in range(job.request.choices)
            ]
        )
        return batches if metrics is None else measure(batches, metrics), None
    direct: DirectRun
    if isinstance(job, TokenJob):
        direct = TokenRun(job, model.progress, model.delivery_rounds)
    else:
        direct = EventRun(job, model.progress)
    batches = direct.stream_batches()
    if metrics is not None:
        batches = measure(batches, metrics)
        direct.add_observer(metrics.observe_batch)
    if (request.best_of or 0) > request.choices:
        return select_best(batches, request.choices), None
    return batches, direct


async def select_best(batches: Batches, n_best: int) -> Batches:
    """Select the `n_best` candidates with the highest mean logprob, best first
    (OpenAI's best_of). Needs logprobs.

    Nothing can be emitted before every candidate is complete. Usage counts all
    candidates.
    """
    started = Started(None)
    prompts = list[Event]()
    finished = Finished(Usage())
    candidate_events: dict[int, list[Event]] = {}
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                match event:
                    case Started():
                        started = event
                    case PromptTokens():
                        prompts.append(event)
                    case Finished():
                        finished = event
                    case _:
                        # Held back: the best are known only at the end. OpenAI's API
                        # does not stream with best_of either.
                        candidate_events.setdefault(event.choice, []).append(event)
    # Ranked by the mean, not the sum, as OpenAI documents (the highest log probability
    # per token): otherwise the shortest would win.
    ranked = sorted(candidate_events.values(), key=_compute_likelihood, reverse=True)[:n_best]
    yield [msgspec.structs.replace(started, choices=n_best), *prompts]
    for index, events in enumerate(ranked):
        yield [msgspec.structs.replace(event, choice=index) for event in events]
    yield [finished]


def _compute_likelihood(events: list[Event]) -> float:
    tokens: list[Token] = [token for event in events for token in get_answer_tokens(event)]
    logprobs = [token.logprob for token in tokens if token.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else 0.0
