"""Admission of a call to the pipeline: its prompts become one stream of event batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import msgspec
from msgspec import Struct

from ..core.events import Event, Finished, PromptTokens, Started, Token, get_answer_tokens
from ..core.request import GenerateRequest
from ..prompts.token_replay import find_ids_since_control
from .call_terms import CallTerms
from .driver import BatchStream, EventSource, Stage, TokenSource
from .engine_backends import TokenBackend
from .event_run import EventRun
from .merge import merge_choices, merge_prompts
from .request_metrics import ModelMetrics, RequestMetrics
from .request_preparation import NO_IDS, Job, TokenJob, prepare_job
from .run_counts import RunCounts
from .served_model import ServedModel
from .token_run import TokenRun


class AdmittedRun(Struct, frozen=True):
    """An admitted call. Nothing has reached the engine until `batches` is iterated;
    closing it cancels the call.

    batches: the batches of events; the server adds its stages.
    warnings: warnings for the client.
    is_admitted: only overload or a failure can still reject the call, so response
        headers need not wait long.
    control_ids: ids of the tokenizer's control tokens; empty if the engine reports no
        ids.
    counts: the tokens that the prompts have used so far.
    jobs: one job per prompt.
    """

    batches: BatchStream
    warnings: tuple[str, ...]
    is_admitted: bool
    counts: RunCounts
    control_ids: frozenset[int] = frozenset()
    jobs: tuple[Job, ...] = ()

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
    # Before any is prepared: the latency of each prompt includes the preparation of all.
    request_metrics = [None if metrics is None else metrics.start_request(model) for _ in requests]
    jobs: list[Job] = []
    all_warnings: list[str] = []
    runs: list[TokenRun | EventRun] = []
    streams: list[BatchStream] = []
    # Preparation awaits, during which the model must stay loaded. The lease takes over
    # before this ends.
    with model.keep_loaded():
        for index, request in enumerate(requests):
            job, warnings = await prepare_job(model, request, terms, index)
            jobs.append(job)
            all_warnings += warnings
        for index, job in enumerate(jobs):
            prompt_runs = _build_runs(model, job)
            runs += prompt_runs
            streams.append(
                _build_stream(model, prompt_runs, requests[index], request_metrics[index])
            )
        batches = streams[0] if len(streams) == 1 else merge_prompts(streams)
        batches.timeout = terms.timeout
        if model.usage_guard is not None:
            batches.add_stage(Lease(model.usage_guard))
    backend = model.backend
    is_admitted = isinstance(backend, TokenBackend)
    return AdmittedRun(
        batches,
        tuple(dict.fromkeys(all_warnings)) if all_warnings else (),
        is_admitted,
        RunCounts(runs, events_carry_tokens=is_admitted),
        backend.tokenizer.control_ids if is_admitted else NO_IDS,
        tuple(jobs),
    )


class Lease(Stage):
    """Prevents a model from being unloaded until the response ends."""

    __slots__ = ("_usage_guard",)

    def __init__(self, usage_guard: AbstractContextManager[None]) -> None:
        self._usage_guard = usage_guard
        usage_guard.__enter__()

    def close(self, _: BaseException | None, /) -> None:
        self._usage_guard.__exit__(None, None, None)


def _build_runs(model: ServedModel, job: Job) -> Sequence[TokenRun | EventRun]:
    """Build the runs of one prompt: several if its engine has one choice per request."""
    if isinstance(job, TokenJob):
        return (TokenRun(job),)
    choices = job.request.choices
    if choices == 1 or not model.capabilities.has_one_choice:
        return (EventRun(job),)
    request = msgspec.structs.replace(job.request, choices=1)
    one_choice = msgspec.structs.replace(job, request=request)
    return [EventRun(one_choice) for _ in range(choices)]


def _build_stream(
    model: ServedModel,
    runs: Sequence[TokenRun | EventRun],
    request: GenerateRequest,
    metrics: RequestMetrics | None,
) -> BatchStream:
    """Build the stream of one prompt."""
    streams: list[BatchStream] = []
    for run in runs:
        source = (
            TokenSource(run, model.progress, model.delivery_rounds)
            if isinstance(run, TokenRun)
            else EventSource(run, model.progress)
        )
        streams.append(BatchStream(source))
    stream = streams[0] if len(streams) == 1 else merge_choices(streams)
    if metrics is not None:
        carries_tokens = isinstance(model.backend, TokenBackend)
        metrics.counts = RunCounts(runs, events_carry_tokens=carries_tokens)
        stream.add_stage(metrics)
    if request.best_of is not None and request.best_of > request.choices:
        stream.add_stage(BestOf(request.choices))
    return stream


class BestOf(Stage):
    """Selects the candidates with the highest mean logprob, best first (OpenAI's
    best_of). Needs logprobs.

    Nothing can be emitted before every candidate is complete; OpenAI's API does not
    stream with best_of either. Usage counts all candidates.

    n_best: number of candidates to select.
    """

    __slots__ = ("_candidate_events", "_first_events", "_n_best")

    def __init__(self, n_best: int) -> None:
        self._n_best = n_best
        self._first_events: list[Event] = []
        self._candidate_events: dict[int, list[Event]] = {}

    def feed(self, batch: list[Event]) -> list[Event]:
        for event in batch:
            match event:
                case Started():
                    self._first_events.append(msgspec.structs.replace(event, choices=self._n_best))
                case PromptTokens():
                    self._first_events.append(event)
                case Finished():
                    return [*self._first_events, *self._select_best(), event]
                case _:
                    self._candidate_events.setdefault(event.choice, []).append(event)
        return []

    def _select_best(self) -> list[Event]:
        # Ranked by the mean, not the sum, as OpenAI documents (the highest log
        # probability per token): otherwise the shortest would win.
        ranked = sorted(self._candidate_events.values(), key=_compute_likelihood, reverse=True)
        return [
            msgspec.structs.replace(event, choice=index)
            for index, events in enumerate(ranked[: self._n_best])
            for event in events
        ]


def _compute_likelihood(events: list[Event]) -> float:
    tokens: list[Token] = [token for event in events for token in get_answer_tokens(event)]
    logprobs = [token.logprob for token in tokens if token.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else 0.0
