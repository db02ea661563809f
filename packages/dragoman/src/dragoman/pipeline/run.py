"""Entry point: runs the requests of a call on a model and merges them into one stream
of event batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from ..core.events import Event, Finished, PromptTokens, Started, Token, Usage, get_answer_tokens
from ..core.request import GenerateRequest
from ..prompts.tokenizer import find_ids_since_control
from .admission import CallTerms
from .engine_calls import OutputQueue, limit_time, translate_engine_exception
from .lifecycle import Lease
from .metrics import ModelMetrics, RequestMetrics, measure
from .models import ServedModel, TokenBackend
from .prepare import EventJob, Job, NO_IDS, TokenJob, prepare_job
from .prompt_run import EventRun, TokenRun

Batches = AsyncGenerator[list[Event]]

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
        `prompts.tokenizer`.

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


# Merging the streams of several prompts or choices into one, and selecting the best of
# several candidates.


class _PromptEnd:
    """Marks the end of one prompt's stream.

    error: its failure; None if it succeeded.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


def merge_prompts(prompts: Sequence[Batches]) -> Batches:
    """Merge the streams of prompts: choice i of prompt p becomes choice p * n + i.

    `Started` is sent once all prompts have started.
    """
    return prompts[0] if len(prompts) == 1 else _merge_concurrently(prompts)


async def merge_choices(choices: Sequence[Batches]) -> Batches:
    """Merge the choices of one prompt, each of which has its own stream. Usage counts
    the prompt once per choice.
    """
    async with aclosing(_merge_concurrently(choices)) as batches:
        async for batch in batches:
            yield [
                msgspec.structs.replace(event, prompts=1) if type(event) is Started else event
                for event in batch
            ]


async def _merge_concurrently(prompts: Sequence[Batches]) -> Batches:
    queue: OutputQueue[tuple[int, list[Event] | _PromptEnd]] = OutputQueue()
    tasks = [
        asyncio.create_task(_forward_batches(index, batches, queue))
        for index, batches in enumerate(prompts)
    ]
    try:
        async for batch in _read_merged(queue, len(prompts)):
            yield batch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward_batches(
    index: int, batches: Batches, queue: OutputQueue[tuple[int, list[Event] | _PromptEnd]]
) -> None:
    task = asyncio.current_task()
    try:
        async with aclosing(batches):
            async for batch in batches:
                queue.put((index, batch))
    except BaseException as error:
        failure = translate_engine_exception(error, task)
        if not isinstance(failure, Exception):
            raise
        queue.put((index, _PromptEnd(failure)))
    else:
        queue.put((index, _PromptEnd()))


async def _read_merged(
    queue: OutputQueue[tuple[int, list[Event] | _PromptEnd]], prompts: int
) -> Batches:
    merge_state = _MergeState(prompts)
    while merge_state.n_running:
        events: list[Event] = []
        await queue.wait_for_items()
        for index, item in queue.take_all():
            if isinstance(item, _PromptEnd):
                if item.error is not None:
                    raise item.error
                merge_state.n_running -= 1
            else:
                events += [
                    merged_event
                    for event in item
                    for merged_event in merge_state.read(index, event)
                ]
        if events:
            yield events
    yield [Finished(merge_state.build_usage())]


class _MergeState:
    """The prompts that have started, and the summed usage."""

    def __init__(self, prompts: int) -> None:
        self.n_running = prompts
        self._started: list[Started | None] = [None] * prompts
        self._usages: list[Usage] = []
        self._pending: list[tuple[int, Event]] = []

    def read(self, index: int, event: Event) -> list[Event]:
        """Add an event of prompt `index`. Return the events that the merged stream can
        now emit.
        """
        match event:
            case Started():
                self._started[index] = event
                started = [event for event in self._started if event is not None]
                if len(started) < len(self._started):
                    return []
                merged_start = Started(
                    sum(event.prompt_tokens for event in started),
                    _sum_known([event.cached_tokens for event in started]),
                    sum(event.choices for event in started),
                    len(started),
                    tuple(applied_edit for event in started for applied_edit in event.edited),
                    _sum_known([event.written_tokens for event in started]),
                    tuple(
                        dict.fromkeys(warning for event in started for warning in event.warnings)
                    ),
                    min(event.elapsed for event in started),
                )
                pending = self._pending
                self._pending = []
                return [
                    merged_start,
                    *(self._renumber(index, pending_event) for index, pending_event in pending),
                ]
            case Finished(usage):
                self._usages.append(usage)
                return []
            # Held back: `Started` comes first, and its counts are sums over all
            # prompts.
            case _ if None in self._started:
                self._pending.append((index, event))
                return []
            case _:
                return [self._renumber(index, event)]

    def _renumber(self, index: int, event: Event) -> Event:
        if isinstance(event, PromptTokens):
            return msgspec.structs.replace(event, prompt=index)
        assert not isinstance(event, (Started, Finished))
        # All prompts of a request have the same number of choices.
        first_started = self._started[0]
        assert first_started is not None
        return msgspec.structs.replace(event, choice=index * first_started.choices + event.choice)

    def build_usage(self) -> Usage:
        return Usage(
            sum(usage.prompt for usage in self._usages),
            sum(usage.completion for usage in self._usages),
            _sum_known([usage.cached for usage in self._usages]),
            _sum_known([usage.reasoning for usage in self._usages]),
            _sum_known([usage.written for usage in self._usages]),
        )


def _sum_known(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None if one count is unknown."""
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if len(known_counts) == len(counts) else None


async def select_best(batches: Batches, n_best: int) -> Batches:
    """Select the `n_best` candidates with the highest mean logprob, best first
    (OpenAI's best_of). Needs logprobs.

    Nothing can be emitted before every candidate is complete. Usage counts all
    candidates.
    """
    started = Started(0)
    prompts = list[Event]()
    finished = Finished(Usage(0, 0))
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
